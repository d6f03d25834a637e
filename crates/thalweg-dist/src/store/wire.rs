//! The messages between a [`TcpStore`](super::TcpStore) and its server.
//!
//! A frame is its length (u32, little endian) and its bytes. A connection starts with [`GREETING`] from both sides, so that a
//! side with another protocol (such as PyTorch's own store) is detected. A request is an operation's byte and its fields, an
//! answer a status byte and its field; a field is its length and its bytes.

use std::io::{self, Read, Write};

/// The first bytes of a connection, from both sides: a name and the version of the protocol.
pub(super) const GREETING: &[u8; 8] = b"thalweg1";

/// The maximum length of a frame.
const LONGEST: usize = 64 << 20;

/// The operation of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Operation {
    Set = 1,
    Find,
    Add,
    CompareSet,
    Wait,
    DeleteKey,
    NumKeys,
}

impl Operation {
    const ALL: [Self; 7] =
        [Self::Set, Self::Find, Self::Add, Self::CompareSet, Self::Wait, Self::DeleteKey, Self::NumKeys];

    pub(super) fn of_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|operation| *operation as u8 == byte)
    }
}

/// The status of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Status {
    /// The field is the answer.
    Done = 0,
    /// A key is not set, or not all were set in time: the field lists the missing keys, one per line.
    Missing = 1,
    /// The field is the error's message.
    Error = 2,
}

/// Returns a message from a first byte and fields.
pub(super) fn message(first: u8, fields: &[&[u8]]) -> Vec<u8> {
    let mut bytes = vec![first];
    for field in fields {
        bytes.extend((field.len() as u32).to_le_bytes());
        bytes.extend_from_slice(field);
    }
    bytes
}

/// Returns the first byte and the fields of a message, `None` if it is malformed.
pub(super) fn parts(message: &[u8]) -> Option<(u8, Vec<&[u8]>)> {
    let (&first, mut rest) = message.split_first()?;
    let mut fields = Vec::new();
    while !rest.is_empty() {
        let (length, after) = rest.split_first_chunk::<4>()?;
        let (field, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        fields.push(field);
        rest = after;
    }
    Some((first, fields))
}

pub(super) fn write_frame(stream: &mut impl Write, message: &[u8]) -> io::Result<()> {
    if message.len() > LONGEST {
        let text = format!("a message of {} bytes is more than the {LONGEST} that are taken", message.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let mut frame = (message.len() as u32).to_le_bytes().to_vec();
    frame.extend_from_slice(message);
    stream.write_all(&frame)
}

pub(super) fn read_frame(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > LONGEST {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame that is not a frame"));
    }
    let mut message = vec![0; length];
    stream.read_exact(&mut message)?;
    Ok(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_and_cut_ones_do_not() {
        let sent = message(3, &[b"key", b"", b"value"]);
        assert_eq!(parts(&sent), Some((3, vec![&b"key"[..], b"", b"value"])));
        for end in 0..sent.len() {
            let cut = parts(&sent[..end]);
            assert!(cut.is_none_or(|(_, fields)| fields.len() < 3), "{end} bytes");
        }
        assert_eq!(parts(&[1, 255, 255, 255, 255, 0]), None);
    }

    #[test]
    fn a_frame_of_nonsense_is_refused() {
        assert!(read_frame(&mut &b"GET / HTTP/1.1\r\n"[..]).is_err());
        let mut stream = Vec::new();
        write_frame(&mut stream, b"abc").unwrap();
        assert_eq!(read_frame(&mut &stream[..]).unwrap(), b"abc");
        assert!(read_frame(&mut &stream[..5]).is_err());
    }
}

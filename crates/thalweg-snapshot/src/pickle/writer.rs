//! Writing a pickle.
//!
//! A number is written in the shortest form, never more than eight bytes: the web viewer cannot calculate with longer ones.
//! Texts, frames and stacks are stored in the memo, because a trace repeats few of them many times.

use rustc_hash::FxHashMap;

use super::opcode;
use crate::dump::{self, Dump};
use crate::{Frame, Frames};

/// A writer of consecutive values.
pub(crate) struct PickleWriter<'a> {
    out: Vec<u8>,
    memoised: u32,
    texts: FxHashMap<&'a str, u32>,
    frames: FxHashMap<&'a Frame, u32>,
    /// Stacks by their address in memory: they are shared, and comparing them frame by frame would cost more than it saves.
    stacks: FxHashMap<(*const Frame, usize), u32>,
}

impl<'a> PickleWriter<'a> {
    pub(crate) fn new() -> Self {
        Self {
            out: vec![opcode::PROTO, 4],
            memoised: 0,
            texts: FxHashMap::default(),
            frames: FxHashMap::default(),
            stacks: FxHashMap::default(),
        }
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.out.push(opcode::STOP);
        self.out
    }

    /// Stores the value that was just begun in the memo, under the next number.
    fn memoise(&mut self) -> u32 {
        self.out.push(opcode::MEMOIZE);
        self.memoised += 1;
        self.memoised - 1
    }

    fn recall(&mut self, number: u32) {
        match u8::try_from(number) {
            Ok(number) => self.out.extend([opcode::BINGET, number]),
            Err(_) => {
                self.out.push(opcode::LONG_BINGET);
                self.out.extend(number.to_le_bytes());
            }
        }
    }
}

impl<'a> Dump<'a> for PickleWriter<'a> {
    fn none(&mut self) {
        self.out.push(opcode::NONE);
    }

    fn bool(&mut self, value: bool) {
        self.out.push(if value { opcode::NEWTRUE } else { opcode::NEWFALSE });
    }

    fn int(&mut self, value: i64) {
        if let Ok(value) = u8::try_from(value) {
            self.out.extend([opcode::BININT1, value]);
        } else if let Ok(value) = u16::try_from(value) {
            self.out.push(opcode::BININT2);
            self.out.extend(value.to_le_bytes());
        } else if let Ok(value) = i32::try_from(value) {
            self.out.push(opcode::BININT);
            self.out.extend(value.to_le_bytes());
        } else {
            // Two's complement, without the bytes that only repeat the sign.
            let spare_bits = (value ^ (value >> 63)).leading_zeros() - 1;
            let length = 8 - spare_bits / 8;
            self.out.extend([opcode::LONG1, length as u8]);
            self.out.extend(&value.to_le_bytes()[..length as usize]);
        }
    }

    fn float(&mut self, value: f64) {
        self.out.push(opcode::BINFLOAT);
        self.out.extend(value.to_be_bytes());
    }

    fn text(&mut self, value: &'a str) {
        if let Some(&number) = self.texts.get(value) {
            return self.recall(number);
        }
        if let Ok(length) = u8::try_from(value.len()) {
            self.out.extend([opcode::SHORT_BINUNICODE, length]);
        } else {
            let length = u32::try_from(value.len()).expect("no single text of a snapshot has 4 GiB");
            self.out.push(opcode::BINUNICODE);
            self.out.extend(length.to_le_bytes());
        }
        self.out.extend(value.as_bytes());
        let number = self.memoise();
        self.texts.insert(value, number);
    }

    fn begin_list(&mut self) {
        self.out.extend([opcode::EMPTY_LIST, opcode::MARK]);
    }

    fn end_list(&mut self) {
        self.out.push(opcode::APPENDS);
    }

    fn begin_dict(&mut self) {
        self.out.extend([opcode::EMPTY_DICT, opcode::MARK]);
    }

    fn end_dict(&mut self) {
        self.out.push(opcode::SETITEMS);
    }

    fn key(&mut self, key: &'a str) {
        self.text(key);
    }

    fn pair(&mut self, (first, second): (u64, u64)) {
        self.unsigned(first);
        self.unsigned(second);
        self.out.push(opcode::TUPLE2);
    }

    fn frames(&mut self, frames: &'a Frames) {
        if frames.is_empty() {
            return self.out.push(opcode::EMPTY_LIST);
        }
        let place = (frames.as_ptr(), frames.len());
        if let Some(&number) = self.stacks.get(&place) {
            return self.recall(number);
        }
        self.begin_list();
        for frame in frames.iter() {
            if let Some(&number) = self.frames.get(frame) {
                self.recall(number);
            } else {
                dump::frame(frame, self);
                let number = self.memoise();
                self.frames.insert(frame, number);
            }
        }
        self.end_list();
        let number = self.memoise();
        self.stacks.insert(place, number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::{Builder, Value};
    use crate::pickle::run;
    use crate::source::Source;

    #[test]
    fn numbers_of_every_length_come_back() {
        let edges = (0..63).flat_map(|bit| {
            let power = 1_i64 << bit;
            [power - 1, power, -power, -power - 1]
        });
        for value in edges.chain([i64::MAX, i64::MIN]) {
            let mut writer = PickleWriter::new();
            writer.int(value);
            let bytes = writer.finish();
            assert!(bytes.len() <= 2 + 10 + 1, "{value} takes {bytes:?}");
            let read = run(&mut Source::new(&bytes[..]), &mut Builder::new());
            assert_eq!(read, Ok(Value::Int(value)));
        }
    }
}

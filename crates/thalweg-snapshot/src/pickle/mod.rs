//! Python's pickle format, as far as snapshots need it.
//!
//! A pickle is a program for a small stack machine: push a number, push a mark, make a list of everything above the mark. A
//! *memo* stores values by number, so that frequent values are written once. Programs that import or call something, which makes
//! pickles dangerous, are refused: a snapshot is plain data.
//!
//! - [`run`] runs such a program of protocol 2 to 5 while it is read, and passes its values to a
//!   [`Builder`](super::build::Builder). The stack is the machine's own: nothing recurses, however deeply a hostile file nests.
//! - [`PickleWriter`] writes protocol 4, with the instructions that the web viewer supports, which are fewer than Python's.

mod machine;
mod writer;

pub(super) use machine::run;
pub(super) use writer::PickleWriter;

/// The instructions, by their names in Python's `pickletools`.
pub(crate) mod opcode {
    pub(crate) const MARK: u8 = b'(';
    pub(crate) const STOP: u8 = b'.';
    pub(crate) const POP: u8 = b'0';
    pub(crate) const POP_MARK: u8 = b'1';
    pub(crate) const DUP: u8 = b'2';
    pub(crate) const BINFLOAT: u8 = b'G';
    pub(crate) const BININT: u8 = b'J';
    pub(crate) const BININT1: u8 = b'K';
    pub(crate) const BININT2: u8 = b'M';
    pub(crate) const NONE: u8 = b'N';
    pub(crate) const BINUNICODE: u8 = b'X';
    pub(crate) const BINBYTES: u8 = b'B';
    pub(crate) const SHORT_BINBYTES: u8 = b'C';
    pub(crate) const APPEND: u8 = b'a';
    pub(crate) const APPENDS: u8 = b'e';
    pub(crate) const BINGET: u8 = b'h';
    pub(crate) const LONG_BINGET: u8 = b'j';
    pub(crate) const BINPUT: u8 = b'q';
    pub(crate) const LONG_BINPUT: u8 = b'r';
    pub(crate) const SETITEM: u8 = b's';
    pub(crate) const TUPLE: u8 = b't';
    pub(crate) const SETITEMS: u8 = b'u';
    pub(crate) const EMPTY_TUPLE: u8 = b')';
    pub(crate) const EMPTY_LIST: u8 = b']';
    pub(crate) const EMPTY_DICT: u8 = b'}';
    pub(crate) const PROTO: u8 = 0x80;
    pub(crate) const TUPLE1: u8 = 0x85;
    pub(crate) const TUPLE2: u8 = 0x86;
    pub(crate) const TUPLE3: u8 = 0x87;
    pub(crate) const NEWTRUE: u8 = 0x88;
    pub(crate) const NEWFALSE: u8 = 0x89;
    pub(crate) const LONG1: u8 = 0x8a;
    pub(crate) const LONG4: u8 = 0x8b;
    pub(crate) const SHORT_BINUNICODE: u8 = 0x8c;
    pub(crate) const BINUNICODE8: u8 = 0x8d;
    pub(crate) const BINBYTES8: u8 = 0x8e;
    pub(crate) const MEMOIZE: u8 = 0x94;
    pub(crate) const FRAME: u8 = 0x95;
}

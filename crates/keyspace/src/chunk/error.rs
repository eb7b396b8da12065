//! Why a chunk cannot be read.

use std::fmt;

use slimio_rdb::ValueType as RdbType;

use super::VERSION;

/// An error in a chunk: this program would not have written the chunk, or the chunk does not fit
/// the other chunks.
#[derive(Debug)]
pub enum ChunkError {
    /// The chunk is not a sequence of RDB opcodes. The error's offsets count bytes
    /// from the start of the chunk.
    Malformed(slimio_rdb::Error),
    /// The chunk holds an RDB type or an opcode that this program does not support.
    Unknown(u8),
    /// The chunk holds a value of a type that this program does not support. The type is given by
    /// the number that it has in chunks, which can differ from its codes in RDB.
    UnknownKind(u8),
    /// The chunk names a database that does not exist. The server had more databases when it wrote
    /// the chunk.
    NoSuchDb(u64),
    /// This key occurs twice.
    Twice(Vec<u8>),
    /// A value that came in parts is incomplete, or the parts belong to different values.
    Parts,
}

impl fmt::Display for ChunkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(error) => write!(f, "the chunk cannot be read: {error}"),
            Self::Unknown(code) => match RdbType::from_code(*code, VERSION) {
                Some(rdb_type) => {
                    let kind = rdb_type.kind();
                    write!(
                        f,
                        "the chunk holds a {kind} (RDB type {code}), which this version cannot read"
                    )
                }
                None => write!(f, "the chunk holds an unknown type or opcode {code}"),
            },
            Self::UnknownKind(number) => {
                // `number` is the number that the type has in chunks. A number below 5 equals the
                // type's code in the first versions of RDB. A stream has the number 5, but other
                // codes in RDB.
                let known = if *number < 5 { RdbType::from_code(*number, VERSION) } else { None };
                match (known, number) {
                    (Some(rdb_type), _) => write!(f, "the chunk holds a {}", rdb_type.kind())?,
                    (None, 5) => f.write_str("the chunk holds a stream")?,
                    (None, _) => f.write_str("the chunk holds a value")?,
                }
                write!(f, " (type {number}), which this version cannot read")
            }
            Self::NoSuchDb(db) => write!(f, "a key belongs to database {db}, which does not exist"),
            Self::Twice(key) => {
                write!(f, "a key occurs twice: '{}'", String::from_utf8_lossy(key))
            }
            Self::Parts => f.write_str("the parts of a large value do not fit together"),
        }
    }
}

impl std::error::Error for ChunkError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Malformed(error) => Some(error),
            _ => None,
        }
    }
}

impl From<slimio_rdb::Error> for ChunkError {
    fn from(error: slimio_rdb::Error) -> Self {
        Self::Malformed(error)
    }
}

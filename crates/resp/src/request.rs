//! What a client asked for: a list of arguments.

use std::borrow::Cow;

use crate::blob::Blob;
use crate::integer::parse_i64;

/// The arguments of one request, as ranges of the bytes it was parsed from, or large strings.
///
/// Means nothing without those bytes: see [`Args`].
#[derive(Clone, Debug, Default)]
pub struct Request {
    items: Vec<Item>,
    blobs: Vec<Blob>,
}

/// A range of the bytes, or, with `start` of `BLOB`, the index of a large string in `size`.
#[derive(Clone, Copy, Debug)]
struct Item {
    start: usize,
    size: usize,
}

const BLOB: usize = usize::MAX;

/// Longest argument, in bytes, that is looked at as a number though it is a large string.
const WORD_SIZE_MAX: usize = 64;

impl Request {
    /// A request without arguments.
    pub fn new() -> Self {
        Self::default()
    }

    /// Count of arguments, the command's name included.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there is no argument at all: nothing to run and nothing to reply.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Forgets the arguments and keeps the memory.
    pub fn clear(&mut self) {
        self.items.clear();
        self.blobs.clear();
    }

    /// Adds an argument that lies at `start` of the bytes.
    pub fn push_range(&mut self, start: usize, size: usize) {
        debug_assert!(start != BLOB);
        self.items.push(Item { start, size });
    }

    /// Adds an argument that is a large string.
    pub fn push_blob(&mut self, blob: Blob) {
        self.items.push(Item { start: BLOB, size: self.blobs.len() });
        self.blobs.push(blob);
    }

    /// The arguments, read from the bytes that the request was parsed from.
    pub fn args<'a>(&'a self, buffer: &'a [u8]) -> Args<'a> {
        Args { buffer, request: self }
    }
}

/// The arguments of a request together with their bytes. Index 0 is the command's name.
#[derive(Clone, Copy, Debug)]
pub struct Args<'a> {
    buffer: &'a [u8],
    request: &'a Request,
}

/// One argument.
#[derive(Clone, Copy, Debug)]
pub enum Arg<'a> {
    /// A string in one piece of memory.
    Bytes(&'a [u8]),
    /// A large string.
    Blob(&'a Blob),
}

impl<'a> Args<'a> {
    /// Count of arguments, the command's name included.
    pub fn len(&self) -> usize {
        self.request.len()
    }

    /// Whether there is no argument at all.
    pub fn is_empty(&self) -> bool {
        self.request.is_empty()
    }

    /// The argument at `index`.
    ///
    /// Panics if there is none.
    pub fn get(&self, index: usize) -> Arg<'a> {
        let item = self.request.items[index];
        if item.start == BLOB {
            Arg::Blob(&self.request.blobs[item.size])
        } else {
            Arg::Bytes(&self.buffer[item.start..item.start + item.size])
        }
    }

    /// The bytes of the argument at `index`; copied only if it is a large string.
    ///
    /// Panics if there is none.
    pub fn bytes(&self, index: usize) -> Cow<'a, [u8]> {
        self.get(index).to_bytes()
    }

    /// All arguments, in order.
    pub fn iter(self) -> impl Iterator<Item = Arg<'a>> {
        (0..self.len()).map(move |index| self.get(index))
    }

    /// A copy that does not depend on the connection's bytes; large strings are shared.
    pub fn to_owned(self) -> OwnedRequest {
        let size = self.iter().map(|arg| if let Arg::Bytes(bytes) = arg { bytes.len() } else { 0 });
        let mut owned =
            OwnedRequest { buffer: Vec::with_capacity(size.sum()), request: Request::new() };
        owned.request.items.reserve_exact(self.len());
        for arg in self.iter() {
            match arg {
                Arg::Bytes(bytes) => owned.push(bytes),
                Arg::Blob(blob) => owned.push_blob(blob.clone()),
            }
        }
        owned
    }
}

impl<'a> Arg<'a> {
    /// Length in bytes.
    pub fn size(&self) -> usize {
        match self {
            Arg::Bytes(bytes) => bytes.len(),
            Arg::Blob(blob) => blob.size(),
        }
    }

    /// The bytes; copied only if this is a large string.
    pub fn to_bytes(self) -> Cow<'a, [u8]> {
        match self {
            Arg::Bytes(bytes) => Cow::Borrowed(bytes),
            Arg::Blob(blob) => Cow::Owned(blob.to_vec()),
        }
    }

    /// The argument as Redis reads an integer: see [`parse_i64`].
    pub fn to_i64(self) -> Option<i64> {
        match self {
            Arg::Bytes(bytes) => parse_i64(bytes),
            Arg::Blob(blob) if blob.size() <= WORD_SIZE_MAX => parse_i64(&blob.to_vec()),
            Arg::Blob(_) => None,
        }
    }

    /// Whether the argument is `text`, letter case aside. `text` is in lower case.
    pub fn is(self, text: &str) -> bool {
        match self {
            Arg::Bytes(bytes) => bytes.eq_ignore_ascii_case(text.as_bytes()),
            // A word that was quoted in an inline request.
            Arg::Blob(blob) => {
                blob.size() == text.len() && blob.to_vec().eq_ignore_ascii_case(text.as_bytes())
            }
        }
    }

    /// The contiguous stretches of the argument, in order.
    pub fn chunks(self) -> impl Iterator<Item = &'a [u8]> {
        let (bytes, blob) = match self {
            Arg::Bytes(bytes) => (Some(bytes), None),
            Arg::Blob(blob) => (None, Some(blob)),
        };
        bytes.into_iter().chain(blob.into_iter().flat_map(|blob| blob.chunks(0..blob.size())))
    }
}

/// A request that owns its bytes: one queued by `MULTI`, or one that does not come from a client.
#[derive(Clone, Debug, Default)]
pub struct OwnedRequest {
    buffer: Vec<u8>,
    request: Request,
}

impl OwnedRequest {
    /// A request of the given arguments.
    pub fn from_args<T: AsRef<[u8]>>(args: impl IntoIterator<Item = T>) -> Self {
        let mut owned = Self::default();
        for arg in args {
            owned.push(arg.as_ref());
        }
        owned
    }

    /// Adds an argument.
    pub fn push(&mut self, bytes: &[u8]) {
        self.request.push_range(self.buffer.len(), bytes.len());
        self.buffer.extend_from_slice(bytes);
    }

    /// Adds an argument that is a large string.
    pub fn push_blob(&mut self, blob: Blob) {
        self.request.push_blob(blob);
    }

    /// Forgets the arguments and keeps the memory.
    pub fn clear(&mut self) {
        self.buffer.clear();
        self.request.clear();
    }

    /// Bytes of memory that it takes, large strings included though others may hold them, too.
    pub fn memory(&self) -> usize {
        let Request { items, blobs } = &self.request;
        let lists = items.capacity() * size_of::<Item>() + blobs.capacity() * size_of::<Blob>();
        let blobs: usize = blobs.iter().map(Blob::size).sum();
        size_of::<Self>() + self.buffer.capacity() + lists + blobs
    }

    /// The arguments.
    pub fn args(&self) -> Args<'_> {
        self.request.args(&self.buffer)
    }
}

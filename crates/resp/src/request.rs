//! What a client asked for: a list of arguments.

use std::borrow::Cow;

use crate::blob::Blob;
use crate::integer::parse_i64;

/// The arguments of one request. Each argument is a range of the bytes that the request was parsed
/// from, or a large string.
///
/// A request is meaningless without these bytes, which [`Args`] adds to it.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The arguments that are not [sealed](Self::seal). They come after the sealed arguments.
    items: Vec<Item>,
    blobs: Vec<Blob>,
    /// The sealed arguments of a long request. The value is boxed, because few requests are long.
    sealed: Option<Box<Sealed>>,
}

/// Arguments, together with the bytes that they are ranges of. When more arguments arrive, neither
/// these bytes nor the list of arguments has to move.
#[derive(Clone, Debug, Default)]
struct Sealed {
    parts: Vec<SealedPart>,
    /// Count of the arguments of all parts.
    len: usize,
}

#[derive(Clone, Debug)]
struct SealedPart {
    /// Index of the first argument.
    first: usize,
    items: Vec<Item>,
    bytes: Vec<u8>,
}

impl Sealed {
    fn find(&self, index: usize) -> (Item, &[u8]) {
        let behind = self.parts.partition_point(|part| part.first <= index);
        let part = &self.parts[behind - 1];
        (part.items[index - part.first], &part.bytes)
    }

    fn memory(&self) -> usize {
        let parts = self.parts.iter().map(|part| {
            size_of::<SealedPart>()
                + part.bytes.capacity()
                + part.items.capacity() * size_of::<Item>()
        });
        parts.sum()
    }
}

/// A range of the bytes. If `start` is `BLOB`, `size` is instead the index of a large string.
#[derive(Clone, Copy, Debug)]
struct Item {
    start: usize,
    size: usize,
}

const BLOB: usize = usize::MAX;

/// A blob longer than this many bytes is not parsed as a number. A blob may be short, because the
/// quoted words of an inline request are blobs, too.
const WORD_SIZE_MAX: usize = 64;

impl Request {
    /// A request without arguments.
    pub fn new() -> Self {
        Self::default()
    }

    /// Count of arguments, the command's name included.
    #[inline]
    pub fn len(&self) -> usize {
        self.sealed_len() + self.items.len()
    }

    #[inline]
    fn sealed_len(&self) -> usize {
        self.sealed.as_ref().map_or(0, |sealed| sealed.len)
    }

    /// Whether there is no argument at all. If so, there is nothing to run and nothing to reply.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets the arguments. Keeps the memory, except the memory of sealed arguments.
    pub fn clear(&mut self) {
        self.items.clear();
        self.blobs.clear();
        self.sealed = None;
    }

    /// Stores the arguments received so far, together with `bytes`. These arguments are ranges of
    /// `bytes`; later arguments are ranges of other bytes.
    pub fn seal(&mut self, bytes: Vec<u8>) {
        let items = std::mem::take(&mut self.items);
        let sealed = self.sealed.get_or_insert_default();
        let first = sealed.len;
        sealed.len += items.len();
        sealed.parts.push(SealedPart { first, items, bytes });
    }

    /// Number of bytes that were sealed.
    pub fn sealed_size(&self) -> usize {
        self.sealed.as_ref().map_or(0, |sealed| sealed.parts.iter().map(|p| p.bytes.len()).sum())
    }

    /// Number of bytes of memory that sealed arguments take.
    #[inline]
    pub fn sealed_memory(&self) -> usize {
        self.sealed.as_ref().map_or(0, |sealed| sealed.memory())
    }

    /// Bytes of memory that the request takes, including large strings, even if they are shared.
    pub fn memory(&self) -> usize {
        self.items.capacity() * size_of::<Item>()
            + self.blobs.capacity() * size_of::<Blob>()
            + self.blobs.iter().map(Blob::size).sum::<usize>()
            + self.sealed_memory()
    }

    /// Adds an argument that is the `size` bytes from `start` on.
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
    /// A contiguous string.
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
    /// Panics if there is no such argument.
    #[expect(clippy::inline_always, reason = "callers call this several times for each argument")]
    #[inline(always)]
    pub fn get(&self, index: usize) -> Arg<'a> {
        match &self.request.sealed {
            None => self.arg(self.request.items[index], self.buffer),
            Some(sealed) => self.get_beside(sealed, index),
        }
    }

    /// The argument at `index` of a request that is partly sealed.
    #[cold]
    fn get_beside(&self, sealed: &'a Sealed, index: usize) -> Arg<'a> {
        if let Some(own) = index.checked_sub(sealed.len) {
            return self.arg(self.request.items[own], self.buffer);
        }
        let (item, bytes) = sealed.find(index);
        self.arg(item, bytes)
    }

    #[inline]
    fn arg(&self, item: Item, bytes: &'a [u8]) -> Arg<'a> {
        if item.start == BLOB {
            Arg::Blob(&self.request.blobs[item.size])
        } else {
            Arg::Bytes(&bytes[item.start..item.start + item.size])
        }
    }

    /// The bytes of the argument at `index`. They are copied only if the argument is a large
    /// string.
    ///
    /// Panics if there is no such argument.
    pub fn bytes(&self, index: usize) -> Cow<'a, [u8]> {
        self.get(index).to_bytes()
    }

    /// Total size in bytes of the large strings among the arguments.
    pub fn large_size(&self) -> usize {
        self.request.blobs.iter().map(Blob::size).sum()
    }

    /// All arguments, in order. If some arguments are sealed, this is faster than calling
    /// [`get`](Self::get) for each argument.
    pub fn iter(self) -> impl Iterator<Item = Arg<'a>> {
        let parts = self.request.sealed.as_ref().map_or(&[][..], |sealed| &sealed.parts);
        let of = move |items: &'a [Item], bytes: &'a [u8]| {
            items.iter().map(move |item| self.arg(*item, bytes))
        };
        let sealed = parts.iter().flat_map(move |part| of(&part.items, &part.bytes));
        sealed.chain(of(&self.request.items, self.buffer))
    }

    /// A copy that does not depend on the connection's bytes; large strings are shared.
    pub fn to_owned(self) -> OwnedRequest {
        let size = self.iter().map(|arg| if let Arg::Bytes(bytes) = arg { bytes.len() } else { 0 });
        let mut owned =
            OwnedRequest { buffer: Vec::with_capacity(size.sum()), ..OwnedRequest::default() };
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

    /// The bytes. They are copied only if this is a large string.
    pub fn to_bytes(self) -> Cow<'a, [u8]> {
        match self {
            Arg::Bytes(bytes) => Cow::Borrowed(bytes),
            Arg::Blob(blob) => Cow::Owned(blob.to_vec()),
        }
    }

    /// The argument as an integer; `None` if Redis would not accept it as one. See [`parse_i64`].
    pub fn to_i64(self) -> Option<i64> {
        match self {
            Arg::Bytes(bytes) => parse_i64(bytes),
            Arg::Blob(blob) if blob.size() <= WORD_SIZE_MAX => parse_i64(&blob.to_vec()),
            Arg::Blob(_) => None,
        }
    }

    /// Whether the argument equals `text`, ignoring letter case.
    pub fn is(self, text: &str) -> bool {
        match self {
            Arg::Bytes(bytes) => bytes.eq_ignore_ascii_case(text.as_bytes()),
            // Quoted words of an inline request are blobs, too.
            Arg::Blob(blob) => {
                blob.size() == text.len() && blob.to_vec().eq_ignore_ascii_case(text.as_bytes())
            }
        }
    }

    /// The contiguous stretches of the argument, in order.
    pub fn chunks(self) -> impl Iterator<Item = &'a [u8]> {
        self.chunks_from(0)
    }

    /// The contiguous stretches of the argument from byte `from` on, in order.
    ///
    /// Panics if `from` is past the end.
    pub fn chunks_from(self, from: usize) -> impl Iterator<Item = &'a [u8]> {
        let (bytes, blob) = match self {
            Arg::Bytes(bytes) => (Some(&bytes[from..]), None),
            Arg::Blob(blob) => (None, Some(blob)),
        };
        let of_blob = blob.into_iter().flat_map(move |blob| blob.chunks(from..blob.size()));
        bytes.into_iter().chain(of_blob)
    }
}

/// A request that owns its bytes, because it is queued by `MULTI` or does not come from a client.
#[derive(Clone, Debug, Default)]
pub struct OwnedRequest {
    buffer: Vec<u8>,
    /// The request was parsed from the bytes of `buffer` from this offset on.
    start: usize,
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

    /// A request together with the bytes that it was parsed from. These bytes begin at `start` of
    /// `buffer`. Nothing is copied, no matter how many arguments there are.
    pub fn from_received(buffer: Vec<u8>, start: usize, request: Request) -> Self {
        Self { buffer, start, request }
    }

    /// Adds an argument.
    pub fn push(&mut self, bytes: &[u8]) {
        self.request.push_range(self.buffer.len() - self.start, bytes.len());
        self.buffer.extend_from_slice(bytes);
    }

    /// Adds an argument that is a large string.
    pub fn push_blob(&mut self, blob: Blob) {
        self.request.push_blob(blob);
    }

    /// Forgets the arguments and keeps the memory.
    pub fn clear(&mut self) {
        self.buffer.clear();
        self.start = 0;
        self.request.clear();
    }

    /// Bytes of memory that the request takes, including large strings, even if they are shared.
    pub fn memory(&self) -> usize {
        size_of::<Self>() + self.buffer.capacity() + self.request.memory()
    }

    /// The arguments.
    pub fn args(&self) -> Args<'_> {
        self.request.args(&self.buffer[self.start..])
    }
}

//! Writes a listpack from front to end.

use super::{COUNT_UNKNOWN, END, HEADER_SIZE, NewElement};

/// Builds a listpack. The writer can be used again for the next listpack.
#[derive(Clone, Debug)]
pub struct ListpackWriter {
    bytes: Vec<u8>,
    len: usize,
}

impl Default for ListpackWriter {
    fn default() -> Self {
        Self::new()
    }
}

impl ListpackWriter {
    /// An empty writer.
    pub fn new() -> Self {
        Self { bytes: vec![0; HEADER_SIZE], len: 0 }
    }

    /// Begins a new listpack. Keeps the allocated memory.
    pub fn clear(&mut self) {
        self.bytes.truncate(HEADER_SIZE);
        self.len = 0;
    }

    /// Appends a string. If the string is the decimal form of an integer, that integer is appended.
    ///
    /// # Panics
    /// If the string has 4 GiB or more.
    pub fn push(&mut self, string: &[u8]) {
        self.push_element(&NewElement::string(string));
    }

    /// Appends an integer.
    pub fn push_integer(&mut self, value: i64) {
        self.push_element(&NewElement::integer(value));
    }

    fn push_element(&mut self, element: &NewElement<'_>) {
        let start = self.bytes.len();
        self.bytes.resize(start + element.size(), 0);
        element.write(&mut self.bytes[start..]);
        self.len += 1;
    }

    /// How many elements there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Size in bytes of the whole listpack, if it were finished now.
    pub fn size(&self) -> usize {
        self.bytes.len() + 1
    }

    /// Ends the listpack and returns it. [`clear`](Self::clear) the writer before appending to it
    /// again.
    ///
    /// # Panics
    /// If the listpack has 4 GiB or more, which the format does not allow.
    pub fn finish(&mut self) -> &[u8] {
        self.bytes.push(END);
        let size = u32::try_from(self.bytes.len()).expect("a listpack has less than 4 GiB");
        let count = u16::try_from(self.len).unwrap_or(COUNT_UNKNOWN);
        self.bytes[..4].copy_from_slice(&size.to_le_bytes());
        self.bytes[4..HEADER_SIZE].copy_from_slice(&count.to_le_bytes());
        &self.bytes
    }
}

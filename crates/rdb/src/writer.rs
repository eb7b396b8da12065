//! Writes a whole file from front to back.

use std::io::Write;

use crate::checksum::Crc64;
use crate::encode::Encoder;
use crate::error::Error;
use crate::version::Version;

/// Once the encoder holds this many bytes, its bytes are written to the sink.
const BUFFER_SIZE: usize = 256 * 1024;

/// Writes a file: first its header, then the bytes that an [`Encoder`] makes, and last its
/// checksum.
///
/// ```
/// use slimio_rdb::{Attributes, FileReader, FileWriter, Item, Value, ValueType, Version};
///
/// let mut writer = FileWriter::new(Vec::new(), Version::DEFAULT)?;
/// let encoder = writer.encoder()?;
/// encoder.aux(b"redis-ver", b"7.0.15");
/// encoder.select_db(0);
/// encoder.resize_db(1, 0);
/// encoder.key(b"greeting", ValueType::String, Attributes::default());
/// encoder.string(b"hello");
/// let file = writer.finish()?;
///
/// let mut reader = FileReader::open(&file[..])?;
/// while let Some(item) = reader.next_item()? {
///     if let Item::Key(key) = item {
///         assert_eq!(key.name, b"greeting");
///         assert_eq!(reader.value()?, Value::String(b"hello".to_vec()));
///     }
/// }
/// # Ok::<(), slimio_rdb::Error>(())
/// ```
///
/// The file is not durable until the owner of the sink makes it durable.
#[derive(Debug)]
pub struct FileWriter<W> {
    sink: W,
    encoder: Encoder,
    checksum: Option<Crc64>,
    written: u64,
}

impl<W: Write> FileWriter<W> {
    /// Begins a file of `version`. Strings are compressed if that makes them shorter.
    pub fn new(sink: W, version: Version) -> Result<Self, Error> {
        Self::with(sink, Encoder::new(version))
    }

    /// Begins a file with a given encoder, for example with an encoder that does not compress.
    /// Bytes that the encoder already holds are discarded.
    pub fn with(sink: W, mut encoder: Encoder) -> Result<Self, Error> {
        encoder.clear();
        encoder.raw(encoder.version().to_string().as_bytes());
        Ok(Self { sink, encoder, checksum: Some(Crc64::new()), written: 0 })
    }

    /// Writes zero instead of the checksum. Readers take the zero as "no checksum".
    #[must_use]
    pub fn without_checksum(mut self) -> Self {
        self.checksum = None;
        self
    }

    /// The encoder that appends to the file. The encoder holds at most 256 KiB, plus the bytes that
    /// are appended between two calls of this function.
    pub fn encoder(&mut self) -> Result<&mut Encoder, Error> {
        if self.encoder.size() >= BUFFER_SIZE {
            self.write_out()?;
        }
        Ok(&mut self.encoder)
    }

    /// Appends bytes that another encoder made for the same version.
    pub fn encoded(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.write_out()?;
        Self::put(&mut self.sink, &mut self.checksum, &mut self.written, bytes)
    }

    /// Size in bytes of the file so far.
    pub fn size(&self) -> u64 {
        self.written + self.encoder.size() as u64
    }

    /// Ends the file, flushes the sink, and returns it.
    pub fn finish(mut self) -> Result<W, Error> {
        self.encoder.eof();
        self.write_out()?;
        let checksum = self.checksum.as_ref().map_or(0, Crc64::value);
        self.sink.write_all(&checksum.to_le_bytes())?;
        self.sink.flush()?;
        Ok(self.sink)
    }

    fn write_out(&mut self) -> Result<(), Error> {
        let bytes = self.encoder.bytes();
        Self::put(&mut self.sink, &mut self.checksum, &mut self.written, bytes)?;
        self.encoder.clear();
        Ok(())
    }

    fn put(
        sink: &mut W,
        checksum: &mut Option<Crc64>,
        written: &mut u64,
        bytes: &[u8],
    ) -> Result<(), Error> {
        if let Some(checksum) = checksum {
            checksum.update(bytes);
        }
        sink.write_all(bytes)?;
        *written += bytes.len() as u64;
        Ok(())
    }
}

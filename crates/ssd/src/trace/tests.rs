//! Tests that write traces, cut or damage them, and read them back.

use std::fs::File;
use std::io::ErrorKind;

use super::*;

const DEVICE: u64 = 1 << 30;

fn header() -> TraceHeader {
    let about = [("what", "a test: nothing else"), ("discard", "yes")];
    let about = about.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    TraceHeader { device_bytes: DEVICE, about }
}

/// Enough records to fill several blocks, with every kind of event.
fn records() -> Vec<TraceRecord> {
    let mut records = Vec::new();
    let mut at = |time_ns, event| records.push(TraceRecord { time_ns, event });
    at(0, TraceEvent::Mark("load".into()));
    for index in 0..20_000u64 {
        let stream = (index % 3) as u8;
        // The ranges go forward and backward on the device, so that the distances between them are
        // positive and negative.
        let range =
            ByteRange::new(index * 7919 * 512 % (DEVICE - (1 << 20)), (index % 9 + 1) * 512);
        at(index * 1000, TraceEvent::Write { stream, range });
        if index % 100 == 0 {
            at(index * 1000, TraceEvent::Flush);
            at(index * 1000 + 1, TraceEvent::Deallocate { range });
            at(index * 1000 + 1, TraceEvent::WriteZeros { range });
        }
    }
    at(u64::MAX, TraceEvent::Write { stream: 30, range: ByteRange { start: 0, end: DEVICE } });
    records
}

fn written(records: &[TraceRecord]) -> Vec<u8> {
    let mut writer = TraceWriter::new(Vec::new(), &header()).unwrap();
    for record in records {
        writer.push(record.time_ns, &record.event).unwrap();
    }
    assert_eq!(writer.event_count(), records.len() as u64);
    writer.finish().unwrap()
}

fn read(bytes: &[u8]) -> Result<Vec<TraceRecord>, TraceError> {
    TraceReader::new(bytes)?.collect()
}

#[test]
fn what_was_recorded_is_read_back() {
    let records = records();
    let bytes = written(&records);
    assert_eq!(TraceReader::new(&bytes[..]).unwrap().header(), &header());
    assert_eq!(header().get("discard"), Some("yes"));
    assert!(read(&bytes).unwrap() == records);
    assert_eq!(read(&written(&[])).unwrap(), []);
    let per_event = bytes.len() / records.len();
    assert!(per_event < 10, "an event takes {per_event} bytes on average, 10 or more");
}

#[test]
fn a_trace_that_is_cut_anywhere_is_refused() {
    let records = records();
    let bytes = written(&records);
    for length in (0..200).chain((200..bytes.len()).step_by(97)).chain([bytes.len() - 1]) {
        let error = read(&bytes[..length]).unwrap_err();
        let is_named = match error {
            TraceError::NotATrace => length < 8,
            TraceError::Cut { events } => length >= 8 && events <= records.len() as u64,
            _ => false,
        };
        assert!(is_named, "a trace that is cut to {length} bytes gives a wrong error: {error}");
    }
    let text = TraceError::Cut { events: 7 }.to_string();
    assert_eq!(text, "the trace is cut off after 7 events: its recording was not finished");
}

#[test]
fn a_trace_with_any_byte_changed_is_refused() {
    let bytes = written(&records()[..40]);
    for index in 0..bytes.len() {
        let mut bytes = bytes.clone();
        bytes[index] ^= 0x10;
        assert!(read(&bytes).is_err(), "a trace with byte {index} changed is accepted");
    }
    assert!(matches!(read(b"*3\r\n$3\r\nSET\r\n"), Err(TraceError::NotATrace)));
}

#[test]
fn a_trace_holds_only_whole_sectors_of_its_device() {
    let mut writer = TraceWriter::new(Vec::new(), &header()).unwrap();
    for (start, end) in [(0, 0), (0, 100), (1, 513), (DEVICE - 512, DEVICE + 512)] {
        let range = ByteRange { start, end };
        writer.push(0, &TraceEvent::Deallocate { range }).unwrap_err();
    }
    let range = ByteRange::new(0, 512);
    writer.push(0, &TraceEvent::Write { stream: STREAMS_MAX, range }).unwrap_err();
    assert_eq!(writer.event_count(), 0, "refused events were counted");
    let about = vec![("two\nlines".to_owned(), String::new())];
    TraceWriter::new(Vec::new(), &TraceHeader { device_bytes: 0, about }).unwrap_err();
}

#[test]
fn a_tape_that_is_given_up_says_so_once_and_has_no_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let tape = Tape::new(File::create(&path).unwrap(), &header()).unwrap();
    tape.record(&TraceEvent::Flush).unwrap();
    let beyond = TraceEvent::Deallocate { range: ByteRange::new(DEVICE, 4096) };
    let first = tape.record(&beyond).unwrap_err();
    assert!(matches!(&first, TapeError::Failed(error) if error.kind() == ErrorKind::InvalidInput));
    assert!(first.to_string().starts_with("the trace can't be written: "), "{first}");
    assert!(matches!(tape.record(&TraceEvent::Flush), Err(TapeError::Over)));
    assert!(matches!(tape.finish(), Err(TapeError::Over)));
    let cut = TraceReader::new(File::open(&path).unwrap()).unwrap().next();
    assert!(matches!(cut, Some(Err(TraceError::Cut { events: 0 }))), "{cut:?}");

    let tape = Tape::new(File::create(&path).unwrap(), &header()).unwrap();
    tape.record(&TraceEvent::Flush).unwrap();
    assert_eq!(tape.finish().unwrap(), 1);
    assert!(
        matches!(tape.finish(), Err(TapeError::Over)),
        "a tape that has ended was finished again"
    );
    assert_eq!(TraceReader::new(File::open(&path).unwrap()).unwrap().count(), 1);
    Tape::new(File::create("/dev/full").unwrap(), &header()).unwrap_err();
}

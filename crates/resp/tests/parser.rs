//! Tests of requests that arrive in parts, of several requests that arrive at once, and of requests
//! that are too large or malformed.

use proptest::prelude::*;
use slimio_resp::{
    Args, BlobBuilder, LARGE_ARG_SIZE_MIN, Limits, Parser, ProtocolError, Step, reply_size,
};

/// If an incomplete request has complete arguments of at least this many bytes, the test connection
/// seals them: their bytes go from the connection's buffer to the parser.
const SEALED_SIZE_MIN: usize = 40;

/// A connection that receives bytes in parts and keeps the parsed requests.
#[derive(Default)]
struct Connection {
    parser: Parser,
    buffer: Vec<u8>,
    receiving: Option<BlobBuilder>,
    requests: Vec<Vec<Vec<u8>>>,
    limits: Limits,
}

impl Connection {
    fn receive(&mut self, mut bytes: &[u8]) -> Result<(), ProtocolError> {
        if let Some(builder) = &mut self.receiving {
            bytes = &bytes[builder.extend(bytes)..];
            if builder.remaining() > 0 {
                return Ok(());
            }
            let blob = self.receiving.take().expect("a builder was there").finish();
            self.parser.supply_large(blob);
        }
        self.buffer.extend_from_slice(bytes);
        loop {
            match self.parser.step(&self.buffer, &self.limits) {
                Step::Complete { consumed } => {
                    self.requests.push(words(self.parser.request().args(&self.buffer)));
                    assert!(self.parser.is_idle());
                    self.buffer.drain(..consumed);
                }
                Step::NeedMore => {
                    let complete = self.parser.sealable();
                    if complete >= SEALED_SIZE_MIN {
                        self.parser.seal(self.buffer.drain(..complete).collect());
                    }
                    return Ok(());
                }
                Step::Error(error) => return Err(error),
                Step::Large { size, header_end } => {
                    let mut builder = BlobBuilder::new(size);
                    let taken = builder.extend(&self.buffer[header_end..]);
                    self.buffer.drain(header_end..header_end + taken);
                    if builder.remaining() > 0 {
                        assert_eq!(self.buffer.len(), header_end);
                        self.receiving = Some(builder);
                        return Ok(());
                    }
                    self.parser.supply_large(builder.finish());
                }
            }
        }
    }
}

fn words(args: Args<'_>) -> Vec<Vec<u8>> {
    let all: Vec<_> = args.iter().map(|arg| arg.to_bytes().into_owned()).collect();
    assert_eq!(all.len(), args.len());
    let is_same = |(index, word): (usize, &Vec<u8>)| *args.bytes(index) == word[..];
    assert!(all.iter().enumerate().all(is_same), "`iter` and `bytes` give different arguments");
    all
}

fn encode(request: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", request.len()).into_bytes();
    for arg in request {
        bytes.extend(format!("${}\r\n", arg.len()).bytes());
        bytes.extend_from_slice(arg);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

fn text(words: &[&str]) -> Vec<Vec<u8>> {
    words.iter().map(|word| word.as_bytes().to_vec()).collect()
}

fn sample() -> (Vec<u8>, Vec<Vec<Vec<u8>>>) {
    let mut bytes = Vec::new();
    let mut requests = Vec::new();
    for request in [text(&["SET", "key", "a\r\nvalue"]), text(&["PING"]), text(&["GET", ""])] {
        bytes.extend(encode(&request));
        requests.push(request);
    }
    bytes.extend_from_slice(b"*0\r\n\r\n*-1\r\nset k \"quoted value\"\r\nget k\n");
    requests.extend([vec![], vec![], vec![]]);
    requests.extend([text(&["set", "k", "quoted value"]), text(&["get", "k"])]);
    (bytes, requests)
}

#[test]
fn requests_may_be_cut_anywhere() {
    let (bytes, requests) = sample();
    for cut in 0..=bytes.len() {
        let mut connection = Connection::default();
        connection.receive(&bytes[..cut]).expect("the requests are well-formed");
        connection.receive(&bytes[cut..]).expect("the requests are well-formed");
        assert_eq!(connection.requests, requests, "cut at {cut}");
    }
    let mut connection = Connection::default();
    for byte in &bytes {
        connection.receive(std::slice::from_ref(byte)).expect("the requests are well-formed");
    }
    assert_eq!(connection.requests, requests);
}

#[test]
fn large_arguments_may_be_cut_anywhere() {
    let large = |size: usize| (0..size).map(|i| (i % 251) as u8).collect::<Vec<u8>>();
    let request = vec![b"SET".to_vec(), large(LARGE_ARG_SIZE_MIN), b"x".to_vec(), large(600_000)];
    let bytes = [encode(&request), encode(&text(&["PING"])), encode(&request)].concat();
    let near_ends = (0..60).chain(32_760..32_860).chain(632_800..bytes.len().min(632_960));
    for cut in near_ends {
        let mut connection = Connection::default();
        connection.receive(&bytes[..cut]).expect("the requests are well-formed");
        connection.receive(&bytes[cut..]).expect("the requests are well-formed");
        assert_eq!(connection.requests.len(), 3, "cut at {cut}");
        assert!(connection.requests[0] == request && connection.requests[2] == request);
        assert_eq!(connection.requests[1], text(&["PING"]));
    }
}

#[test]
fn limits_are_those_of_the_moment() {
    let error = |limits: Limits, bytes: &[u8]| {
        let mut connection = Connection { limits, ..Connection::default() };
        connection.receive(bytes).err()
    };
    let open = Limits::default();
    let closed = Limits { unauthenticated: true, ..open };
    let small = Limits { arg_size_max: 100, ..open };
    assert_eq!(error(open, b"*11\r\n"), None);
    assert_eq!(error(closed, b"*10\r\n$16384\r\n"), None);
    assert_eq!(error(closed, b"*11\r\n"), Some(ProtocolError::UnauthenticatedCount));
    assert_eq!(error(closed, b"*1\r\n$16385\r\n"), Some(ProtocolError::UnauthenticatedLength));
    assert_eq!(error(small, b"*1\r\n$100\r\n"), None);
    assert_eq!(error(small, b"*1\r\n$101\r\n"), Some(ProtocolError::InvalidLength));
}

#[test]
fn a_claimed_size_allocates_nothing() {
    let measure = |bytes: &[u8]| {
        let mut parser = Parser::new();
        let info = allocation_counter::measure(|| {
            parser.step(bytes, &Limits::default());
        });
        info.bytes_total
    };
    assert!(measure(b"*2147483647\r\n") < 1000);
    assert!(measure(b"*1000000\r\n$536870912\r\n") < 1000);
    assert!(measure(b"*2\r\n$32767\r\nabc") < 1000);
}

#[test]
fn a_request_is_read_without_allocating() {
    let bytes = encode(&text(&["SET", "key", "value", "EX", "100"]));
    let mut parser = Parser::new();
    parser.step(&bytes, &Limits::default());
    let info = allocation_counter::measure(|| {
        assert_eq!(
            parser.step(&bytes, &Limits::default()),
            Step::Complete { consumed: bytes.len() }
        );
    });
    assert_eq!(info.count_total, 0);
}

#[test]
fn quoted_words_are_words() {
    let bytes = b"set key value \"Ex\" '10'\r\n";
    let mut parser = Parser::new();
    let step = parser.step(bytes, &Limits::default());
    assert_eq!(step, Step::Complete { consumed: bytes.len() });
    let args = parser.request().args(bytes);
    assert!(args.get(3).is("ex") && !args.get(3).is("e") && !args.get(3).is("px"));
    assert_eq!(args.get(4).to_i64(), Some(10));
    assert_eq!(args.to_owned().args().bytes(3), args.bytes(3));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_was_sent_is_what_is_read(
        requests in prop::collection::vec(
            prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..6), 1..6),
        part in 1usize..60,
    ) {
        let bytes: Vec<u8> = requests.iter().flat_map(|request| encode(request)).collect();
        let mut connection = Connection::default();
        for part in bytes.chunks(part) {
            connection.receive(part).expect("the requests are well-formed");
        }
        prop_assert_eq!(connection.requests, requests);
        prop_assert!(connection.buffer.is_empty());
    }

    #[test]
    fn no_bytes_make_it_panic(
        bytes in prop::collection::vec(prop::sample::select(&b"*$0123456789-\r\n\"'\\x abc\0"[..]), 0..200),
        part in 1usize..60,
    ) {
        let mut connection = Connection::default();
        for part in bytes.chunks(part) {
            if connection.receive(part).is_err() {
                break;
            }
        }
        let _ = reply_size(&bytes);
    }
}

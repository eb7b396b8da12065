//! RESP2 and RESP3: bytes to requests, replies to bytes. No sockets, no keys.

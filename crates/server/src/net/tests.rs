//! Tests of both back ends for sockets: epoll and io_uring.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Instant;

use slimio_resp::{Piece, Protocol, ReplyBuf};

use super::*;
use crate::config::Config;

/// An event that owns its bytes.
#[derive(Debug)]
enum Came {
    Accepted(ConnId),
    Received(ConnId, Vec<u8>),
    Filled(ConnId, ReceiveBuffer),
    Ended(ConnId),
    HungUp(ConnId),
    Sent(ConnId),
    Ready(WatchId),
}

fn next(net: &mut dyn Net) -> Came {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some(event) = net.next() {
            return match event {
                Event::Accepted(conn, 0) => Came::Accepted(conn),
                Event::Received(conn, bytes) => Came::Received(conn, bytes.to_vec()),
                Event::Filled(conn, filling) => Came::Filled(conn, filling),
                Event::Ended(conn) | Event::Broken(conn) => Came::Ended(conn),
                Event::HungUp(conn) => Came::HungUp(conn),
                Event::Sent(conn, _) => Came::Sent(conn),
                Event::Ready(id) => Came::Ready(id),
                other => panic!("{other:?}"),
            };
        }
        assert!(Instant::now() < deadline, "no event came");
        net.wait(Some(Duration::from_secs(1)));
    }
}

fn for_both(check: impl Fn(&mut dyn Net, &mut dyn FnMut() -> TcpStream)) {
    let mut nets: Vec<Box<dyn Net>> = vec![Box::new(epoll::EpollNet::new().unwrap())];
    match uring::UringNet::new() {
        Ok(net) => nets.push(Box::new(net)),
        Err(why) => eprintln!("SKIPPED the part with io_uring: {why}"),
    }
    for mut net in nets {
        let mut config = Config::default();
        config.set("port", "0").unwrap();
        config.set("bind", "127.0.0.1").unwrap();
        let listener = listen::open(&config).unwrap().remove(0);
        let address = listener.address.unwrap();
        net.listen(listener.fd).unwrap();
        check(&mut *net, &mut || TcpStream::connect(address).unwrap());
    }
}

fn accept(net: &mut dyn Net) -> ConnId {
    let Came::Accepted(conn) = next(net) else { panic!("no connection was accepted") };
    net.receive(conn);
    conn
}

#[test]
fn bytes_come_and_go_and_the_end_is_told() {
    for_both(|net, connect| {
        let mut client = connect();
        let conn = accept(net);
        let peer = Peer::of(net.socket(conn).unwrap());
        assert_eq!(peer.remote, Some(client.local_addr().unwrap()));
        assert_eq!(peer.local, Some(client.peer_addr().unwrap()));

        client.write_all(b"hello").unwrap();
        let Came::Received(from, bytes) = next(net) else { panic!() };
        assert_eq!((from, &bytes[..]), (conn, &b"hello"[..]));

        let mut reply = ReplyBuf::new(Protocol::Resp2);
        reply.bulk_piece(&Piece::new(vec![b'x'; 3 << 20]), 0..3 << 20);
        let outgoing = Outgoing::from_reply(reply);
        let size = outgoing.len();
        let reader = std::thread::spawn(move || {
            let mut all = vec![0; size];
            client.read_exact(&mut all).unwrap();
            assert!(all.starts_with(b"$3145728\r\nxx") && all.ends_with(b"xx\r\n"));
            client
        });
        if net.send(conn, outgoing).is_none() {
            let Came::Sent(to) = next(net) else { panic!() };
            assert_eq!(to, conn);
        }
        drop(reader.join().unwrap());
        let Came::Ended(ended) = next(net) else { panic!() };
        assert_eq!(ended, conn);
        net.close(conn);
        assert!(net.socket(conn).is_none());

        let second = connect();
        let again = accept(net);
        assert_ne!(again, conn, "the identifier of a closed connection was used again");
        drop(second);
    });
}

#[test]
fn large_arguments_land_in_the_callers_memory_and_nothing_is_lost_around_them() {
    const SIZE: usize = 1 << 20;
    for_both(|net, connect| {
        let mut client = connect();
        let conn = accept(net);
        let large: Vec<u8> = (0..SIZE).map(|i| (i % 251) as u8).collect();
        let mut all = b"head".to_vec();
        all.extend_from_slice(&large);
        all.extend_from_slice(b"tail");
        let writer = std::thread::spawn(move || {
            client.write_all(&all).unwrap();
            client
        });
        let Came::Received(_, first) = next(net) else { panic!() };
        assert!(first.len() >= 4);
        let mut got = first[4..].to_vec();
        assert!(got.len() < SIZE);
        while got.len() < SIZE {
            let wanted = (SIZE - got.len()).min(100_000);
            net.fill(conn, ReceiveBuffer { buffer: Vec::with_capacity(wanted), wanted });
            match next(net) {
                Came::Filled(to, filling) => {
                    assert_eq!(to, conn);
                    assert!(filling.buffer.len() <= wanted);
                    got.extend_from_slice(&filling.buffer);
                }
                Came::Received(..) => panic!("the bytes did not go into the memory of `fill`"),
                other => panic!("{other:?}"),
            }
        }
        assert!(got == large, "the received argument differs from the sent one");
        let mut rest = Vec::new();
        while rest.len() < 4 {
            let Came::Received(_, bytes) = next(net) else { panic!() };
            rest.extend_from_slice(&bytes);
        }
        assert_eq!(rest, b"tail");
        drop(writer.join().unwrap());
        assert!(matches!(next(net), Came::Ended(ended) if ended == conn));
    });
}

/// The back end gets memory for the next bytes of a connection (`fill`). The kernel then reports
/// bytes, but these bytes are gone when the back end reads. The back end must keep the memory, and
/// later put the next bytes into it.
#[test]
fn memory_that_waits_stays_where_nothing_is_there() {
    let mut config = Config::default();
    config.set("port", "0").unwrap();
    config.set("bind", "127.0.0.1").unwrap();
    let listener = listen::open(&config).unwrap().remove(0);
    let address = listener.address.unwrap();
    // This test needs epoll, because io_uring takes bytes from the socket before it reports them.
    let mut net = epoll::EpollNet::new().unwrap();
    net.listen(listener.fd).unwrap();
    let mut client = TcpStream::connect(address).unwrap();
    let conn = accept(&mut net);
    net.fill(conn, ReceiveBuffer { buffer: Vec::with_capacity(9), wanted: 9 });
    client.write_all(b"gone").unwrap();
    net.wait(Some(Duration::from_secs(10)));
    let mut stolen = [0; 4];
    assert_eq!(rustix::io::read(net.socket(conn).unwrap(), &mut stolen), Ok(4));
    assert!(net.next().is_none());
    client.write_all(b"there").unwrap();
    let Came::Filled(_, filling) = next(&mut net) else { panic!("the memory is not filled") };
    assert_eq!(filling.buffer, b"there");
}

#[test]
fn a_paused_connection_is_not_read_until_it_is_resumed() {
    for_both(|net, connect| {
        let mut client = connect();
        let conn = accept(net);
        net.pause(conn);
        net.wait(Some(Duration::ZERO));
        client.write_all(b"later").unwrap();
        // A second connection sends bytes later. If the paused connection were read, its bytes
        // would be reported before the bytes of the second connection.
        let mut other = connect();
        let second = accept(net);
        other.write_all(b"now").unwrap();
        let Came::Received(from, _) = next(net) else { panic!() };
        assert_eq!(from, second);
        net.receive(conn);
        let Came::Received(from, bytes) = next(net) else { panic!() };
        assert_eq!((from, &bytes[..]), (conn, &b"later"[..]));
    });
}

#[test]
fn a_watched_descriptor_is_reported() {
    for_both(|net, _| {
        let (reader, mut writer) = std::os::unix::net::UnixStream::pair().unwrap();
        net.watch(std::os::fd::AsFd::as_fd(&reader), WatchId(7)).unwrap();
        for _ in 0..2 {
            writer.write_all(b"x").unwrap();
            assert!(matches!(next(net), Came::Ready(WatchId(7))));
            (&reader).read_exact(&mut [0]).unwrap();
        }
    });
}

#[test]
fn another_ring_is_reported_each_time_that_it_completes_something() {
    let setup = || slimio_ring::Setup {
        avoid: slimio_ring::Features { deferred: true, ..slimio_ring::Features::NONE },
        ..slimio_ring::Setup::default()
    };
    for_both(|net, _| {
        let Ok(mut ring) = slimio_ring::Ring::<(), Vec<u8>>::new(setup()) else {
            eprintln!("SKIPPED: without io_uring, there is no other ring to watch");
            return;
        };
        let (reader, _writer) = std::os::unix::net::UnixStream::pair().unwrap();
        let fd = ring.adopt(reader.into());
        net.watch(ring.readiness().expect("a ring has a descriptor"), WatchId(3)).unwrap();
        let mut completions = Vec::new();
        for _ in 0..3 {
            ring.nothing(fd, ());
            ring.submit().unwrap();
            assert!(matches!(next(net), Came::Ready(WatchId(3))));
            ring.reap(&mut completions);
            // Two reports of one completion do no harm. An unreported completion would do harm.
            while net.next().is_some() {}
        }
        assert_eq!(completions.len(), 3);
    });
}

#[test]
fn a_descriptor_that_nobody_expects_wakes_nobody() {
    let (mut reader, mut writer) = std::os::unix::net::UnixStream::pair().unwrap();
    let mut net = match uring::UringNet::new() {
        Ok(net) => net,
        Err(why) => {
            eprintln!("SKIPPED: {why}");
            return;
        }
    };
    net.watch_on_demand(std::os::fd::AsFd::as_fd(&reader), WatchId(7)).unwrap();
    for _ in 0..2 {
        writer.write_all(b"x").unwrap();
        net.wait(Some(Duration::from_millis(20)));
        assert!(net.next().is_none(), "an event came although `expect` was not called");
        // At the first two calls of `expect`, the descriptor is already ready. At the third call,
        // it is not ready yet.
        net.expect(WatchId(7));
        net.expect(WatchId(7));
        assert!(matches!(next(&mut net), Came::Ready(WatchId(7))));
        assert!(net.next().is_none(), "the descriptor was reported twice");
        reader.read_exact(&mut [0]).unwrap();
        net.expect(WatchId(7));
        writer.write_all(b"y").unwrap();
        assert!(matches!(next(&mut net), Came::Ready(WatchId(7))));
        reader.read_exact(&mut [0]).unwrap();
    }
}

#[test]
fn who_sends_nothing_more_is_told_of_and_can_be_told() {
    for_both(|net, connect| {
        let mut client = connect();
        let conn = accept(net);
        client.write_all(b"hello").unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let Came::Received(from, bytes) = next(net) else { panic!() };
        assert_eq!((from, &bytes[..]), (conn, &b"hello"[..]));
        assert!(matches!(next(net), Came::Ended(ended) if ended == conn));
        let mut reply = ReplyBuf::new(Protocol::Resp2);
        reply.ok();
        if net.send(conn, Outgoing::from_reply(reply)).is_none() {
            assert!(matches!(next(net), Came::Sent(to) if to == conn));
        }
        net.close(conn);
        let mut all = Vec::new();
        // With io_uring, the socket is closed only when its operations have ended, so `wait` is
        // called until the client sees the end.
        net.wait(Some(Duration::ZERO));
        let reader = std::thread::spawn(move || client.read_to_end(&mut all).map(|_| all));
        while !reader.is_finished() {
            net.wait(Some(Duration::from_millis(1)));
        }
        assert_eq!(reader.join().unwrap().unwrap(), b"+OK\r\n");
    });
}

#[test]
fn who_sends_nothing_more_while_it_is_paused_is_told_of_once() {
    for_both(|net, connect| {
        let mut client = connect();
        let conn = accept(net);
        for _ in 0..2 {
            net.pause(conn);
            net.wait(Some(Duration::from_millis(10)));
            assert!(net.next().is_none(), "an event came although the client is still connected");
        }
        client.write_all(b"later").unwrap();
        net.wait(Some(Duration::from_millis(10)));
        assert!(net.next().is_none(), "a paused connection was read");
        client.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(matches!(next(net), Came::HungUp(gone) if gone == conn));
        for _ in 0..2 {
            net.pause(conn);
            net.wait(Some(Duration::from_millis(10)));
            assert!(net.next().is_none(), "the hang-up was reported twice");
        }
        net.receive(conn);
        let Came::Received(from, bytes) = next(net) else { panic!() };
        assert_eq!((from, &bytes[..]), (conn, &b"later"[..]));
        assert!(matches!(next(net), Came::Ended(ended) if ended == conn));
    });
}

//! The load generator: many connections on one thread, closed loop or open loop.
//!
//! In the closed loop, every connection keeps `pipeline` requests in flight, so the server sets the
//! pace. In the open loop, requests arrive by the clock, whatever the server does: an arrival takes
//! the connection that has been free longest, or waits until a connection is free. The latency of
//! an arrival counts from the moment it was *due*. So if a server stalls for a second, the
//! latencies of all requests that were due meanwhile show the stall (no coordinated omission).
//!
//! [`Generator::run`] returns only when every reply has arrived, so that a measurement around a
//! phase covers all requests of the phase.

mod connection;
mod report;
mod schedule;

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};

use crate::address::Address;
use crate::elements::ElementOp;
use crate::error::{BenchError, Doing, Result};
use crate::mix::{Mix, Op};
use crate::reply::Seen;
use crate::request::{KEY_SIZE, MARK_SIZE, RequestWriter};
use crate::rng::for_part;
use connection::{Connection, InFlight};
use schedule::Schedule;

pub use report::{LATENCY_NS_MAX, PhaseReport, TICK};
pub use schedule::Arrival;

/// The largest number of connections of one generator.
pub const CLIENTS_MAX: usize = 10_000;
/// The largest number of requests that one connection keeps in flight.
pub const PIPELINE_MAX: usize = 10_000;
/// The largest number of events that one wait takes from the kernel.
const EVENTS_MAX: usize = 256;
/// The largest number of bytes that one read takes from a socket.
const READ_SIZE: usize = 256 * 1024;
/// The run fails when the server stays silent for this long while requests wait.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// After the end of an open-loop phase, overdue requests are still sent for at most this long.
const OVERDUE_MAX: Duration = Duration::from_secs(30);

/// Settings of a generator.
#[derive(Clone, Debug)]
pub struct LoadConfig {
    /// The server.
    pub address: Address,
    /// Connections, 1 to [`CLIENTS_MAX`].
    pub clients: usize,
    /// Requests in flight per connection, 1 to [`PIPELINE_MAX`].
    pub pipeline: usize,
    /// Closed or open loop.
    pub arrival: Arrival,
    /// Whether to check each value that is read. The value must have the length and the key mark of
    /// a value that this generator writes.
    pub check_values: bool,
    /// Source of every random choice.
    pub seed: u64,
}

/// When a phase ends.
#[derive(Clone, Debug)]
pub enum Until {
    /// After this time.
    Elapsed(Duration),
    /// After this many requests.
    Requests(u64),
    /// When this flag is set.
    Stopped(Arc<AtomicBool>),
}

struct End {
    at_ns: u64,
    told: Option<Arc<AtomicBool>>,
}

impl End {
    /// When the phase ends, in nanoseconds since it began. With [`Until::Stopped`], the first call
    /// after the flag was set fixes the end.
    fn at_ns(&mut self, now_ns: u64) -> u64 {
        if self.told.as_ref().is_some_and(|told| told.load(Ordering::Relaxed)) {
            self.told = None;
            self.at_ns = now_ns;
        }
        self.at_ns
    }
}

/// Connections to one server, and the buffers and counters of the load on these connections.
pub struct Generator {
    config: LoadConfig,
    mix: Mix,
    writer: RequestWriter,
    rng: Rng,
    epoll: OwnedFd,
    connections: Vec<Connection>,
    read_buffer: Vec<u8>,
    write_buffer: Vec<u8>,
    completed: Vec<(InFlight, Seen)>,
    /// Open loop: connections with room for a request. The one that has been free longest comes
    /// first.
    free: VecDeque<usize>,
    events: Vec<epoll::Event>,
    in_flight: u64,
    report: PhaseReport,
    /// Number of requests that this phase may still begin.
    begin_left: u64,
    started: Instant,
}

impl Generator {
    /// Connects all clients.
    pub fn connect(config: LoadConfig, mix: Mix, writer: RequestWriter) -> Result<Self> {
        if !(1..=CLIENTS_MAX).contains(&config.clients)
            || !(1..=PIPELINE_MAX).contains(&config.pipeline)
        {
            return Err(BenchError::Usage(format!(
                "--clients must be 1 to {CLIENTS_MAX}, --pipeline 1 to {PIPELINE_MAX}"
            )));
        }
        // Without this setting, the kernel may wake an open loop 50 µs late on purpose.
        let slack = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        slack.doing("setting the timer slack")?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).doing("making an epoll")?;
        let mut connections = Vec::with_capacity(config.clients);
        for index in 0..config.clients {
            connections.push(Connection::open(&config.address, &epoll, index as u64)?);
        }
        Ok(Self {
            rng: for_part(config.seed, 0),
            mix,
            writer,
            epoll,
            connections,
            read_buffer: vec![0; READ_SIZE],
            write_buffer: Vec::new(),
            completed: Vec::new(),
            free: VecDeque::new(),
            events: Vec::with_capacity(EVENTS_MAX),
            in_flight: 0,
            report: PhaseReport::new(),
            begin_left: 0,
            started: Instant::now(),
            config,
        })
    }

    /// Sets the mix and the arrivals of the next phase.
    pub fn set_mix(&mut self, mix: Mix, arrival: Arrival) {
        self.mix = mix;
        self.config.arrival = arrival;
    }

    /// Sends requests until `until`, and then waits for the last reply.
    pub fn run(&mut self, until: Until) -> Result<PhaseReport> {
        assert_eq!(self.in_flight, 0, "a phase begins with no request in flight");
        self.report = PhaseReport::new();
        self.started = Instant::now();
        self.begin_left = match until {
            Until::Requests(count) => count,
            Until::Elapsed(_) | Until::Stopped(_) => u64::MAX,
        };
        let end = match until {
            Until::Elapsed(duration) => End { at_ns: duration.as_nanos() as u64, told: None },
            Until::Requests(_) => End { at_ns: u64::MAX, told: None },
            Until::Stopped(told) => End { at_ns: u64::MAX, told: Some(told) },
        };
        match Schedule::new(self.config.arrival) {
            None => self.run_closed(end)?,
            Some(schedule) => self.run_open(schedule, end)?,
        }
        self.report.finish(self.started.elapsed());
        Ok(std::mem::replace(&mut self.report, PhaseReport::new()))
    }

    fn run_closed(&mut self, mut end: End) -> Result<()> {
        for index in 0..self.connections.len() {
            self.refill(index, self.config.pipeline)?;
        }
        let mut heard = Instant::now();
        while self.in_flight > 0 {
            let ready = self.wait(SILENCE_MAX)?;
            // A wait also ends when this process is stopped and continued (SIGSTOP, SIGCONT), so
            // the time is checked, too.
            if ready == 0 && heard.elapsed() > SILENCE_MAX {
                return Err(self.silent());
            }
            if ready > 0 {
                heard = Instant::now();
            }
            for at in 0..ready {
                let index = self.events[at].data.u64() as usize;
                let room = self.exchange(index)?;
                if room > 0 {
                    let now_ns = self.elapsed_ns();
                    if now_ns >= end.at_ns(now_ns) {
                        self.begin_left = 0;
                    }
                    self.refill(index, room)?;
                }
            }
        }
        Ok(())
    }

    /// Sends `count` new requests on one connection, or fewer if the phase has fewer left.
    fn refill(&mut self, index: usize, count: usize) -> Result<()> {
        let now_ns = self.elapsed_ns();
        for _ in 0..count {
            if self.begin_left == 0 {
                break;
            }
            self.begin_left -= 1;
            let op = self.mix.pick(&mut self.rng);
            self.begin(index, op, now_ns);
        }
        self.flush(index)
    }

    fn run_open(&mut self, mut schedule: Schedule, mut end: End) -> Result<()> {
        self.free.clear();
        for _ in 0..self.config.pipeline {
            self.free.extend(0..self.connections.len());
        }
        let mut due = VecDeque::new();
        let mut heard = Instant::now();
        loop {
            let now_ns = self.elapsed_ns();
            let end_ns = end.at_ns(now_ns);
            while schedule.due_ns() <= now_ns.min(end_ns) && self.begin_left > 0 {
                due.push_back(schedule.due_ns());
                schedule.advance(&mut self.rng);
                self.begin_left -= 1;
            }
            let was_free = !self.free.is_empty();
            self.send_due(&mut due, was_free)?;

            let arrivals_over = schedule.due_ns() > end_ns || self.begin_left == 0;
            if arrivals_over && due.is_empty() && self.in_flight == 0 {
                return Ok(());
            }
            let overdue_ns = now_ns.saturating_sub(end_ns);
            if overdue_ns > OVERDUE_MAX.as_nanos() as u64 {
                self.give_up_on(&mut due);
            }
            let timeout = if arrivals_over || self.free.is_empty() {
                Duration::from_secs(1)
            } else {
                Duration::from_nanos(schedule.due_ns().saturating_sub(self.elapsed_ns()))
            };
            let ready = self.wait(timeout)?;
            if ready > 0 || self.in_flight == 0 {
                heard = Instant::now();
            } else if heard.elapsed() > SILENCE_MAX {
                return Err(self.silent());
            }
            for at in 0..ready {
                let index = self.events[at].data.u64() as usize;
                for _ in 0..self.exchange(index)? {
                    self.free.push_back(index);
                }
            }
        }
    }

    /// Sends due requests, each on a free connection, until no due request or no free connection is
    /// left.
    fn send_due(&mut self, due: &mut VecDeque<u64>, was_free: bool) -> Result<()> {
        while let Some(&due_ns) = due.front()
            && let Some(index) = self.free.pop_front()
        {
            due.pop_front();
            if was_free {
                let lag_ns = self.elapsed_ns().saturating_sub(due_ns);
                self.report.own_lag.saturating_record(lag_ns);
            }
            let op = self.mix.pick(&mut self.rng);
            self.begin(index, op, due_ns);
            self.flush(index)?;
        }
        Ok(())
    }

    /// Records requests that will never be sent, with the time that they have waited so far.
    fn give_up_on(&mut self, due: &mut VecDeque<u64>) {
        let now_ns = self.elapsed_ns();
        for due_ns in due.drain(..) {
            self.report.never_sent += 1;
            let op = self.mix.pick(&mut self.rng);
            self.report.record_latency(op, now_ns - due_ns);
        }
    }

    fn begin(&mut self, index: usize, op: Op, since_ns: u64) {
        self.in_flight += 1;
        self.write_request(index, InFlight { op, since_ns });
    }

    fn write_request(&mut self, index: usize, request: InFlight) {
        let Self { writer, mix, rng, write_buffer, report, .. } = self;
        let start = write_buffer.len();
        writer.write(request.op, mix.key_count(), rng, write_buffer);
        report.payload_bytes += payload_size(request.op, writer.value_size());
        debug_assert!(write_buffer.len() > start);
        self.connections[index].in_flight.push_back(request);
    }

    fn flush(&mut self, index: usize) -> Result<()> {
        let connection = &mut self.connections[index];
        let result = connection.send(&self.epoll, index as u64, &self.write_buffer);
        self.write_buffer.clear();
        result
    }

    /// Reads what connection `index` has received. Returns the number of requests that are
    /// completed by the replies.
    fn exchange(&mut self, index: usize) -> Result<usize> {
        let connection = &mut self.connections[index];
        connection.send(&self.epoll, index as u64, &[])?;
        connection.receive(&mut self.read_buffer, &mut self.completed)?;
        if self.completed.is_empty() {
            return Ok(0);
        }
        let now_ns = self.elapsed_ns();
        let mut done = 0;
        let mut completed = std::mem::take(&mut self.completed);
        for (request, seen) in completed.drain(..) {
            self.check(index, request, &seen)?;
            if let Op::ReadModifyWrite { key } = request.op
                && seen != Seen::Error
            {
                let op = Op::Set { key };
                self.write_request(index, InFlight { op, ..request });
                continue;
            }
            done += 1;
            self.in_flight -= 1;
            self.report.record(request.op, now_ns.saturating_sub(request.since_ns));
        }
        self.report.tick(now_ns, done);
        self.completed = completed;
        if !self.write_buffer.is_empty() {
            self.flush(index)?;
        }
        Ok(done)
    }

    fn check(&mut self, index: usize, request: InFlight, seen: &Seen) -> Result<()> {
        let report = &mut self.report;
        match (request.op, seen) {
            (_, Seen::Error) => {
                report.errors += 1;
                if report.first_error.is_none() {
                    let text = self.connections[index].error_text().to_owned();
                    report.first_error = Some(text);
                }
            }
            (Op::Set { .. } | Op::MSet { .. }, Seen::Status) => {}
            (
                Op::Get { .. }
                | Op::ReadModifyWrite { .. }
                | Op::Element(ElementOp::GetField { .. }),
                Seen::Nil,
            ) => report.misses += 1,
            (
                Op::Get { key }
                | Op::ReadModifyWrite { key }
                | Op::Element(ElementOp::GetField { field: key }),
                &Seen::Bulk { len, mark },
            ) => {
                report.hits += 1;
                let value_size = self.writer.value_size();
                let marked = value_size >= MARK_SIZE;
                if self.config.check_values
                    && (len != value_size || (marked && mark != key.to_le_bytes()))
                {
                    return Err(BenchError::Reply(format!(
                        "key {key} has a value that no client wrote: {len} bytes, mark {mark:?}"
                    )));
                }
            }
            (Op::MGet { len, .. }, &Seen::Array { strings, nils }) if strings + nils == len => {
                report.hits += strings;
                report.misses += nils;
            }
            (Op::Element(op), seen) if op.is_answered_by(seen) => {}
            (op, seen) => {
                return Err(BenchError::Reply(format!("{op:?} was answered with {seen:?}")));
            }
        }
        Ok(())
    }

    fn wait(&mut self, timeout: Duration) -> Result<usize> {
        let timeout = Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        self.events.clear();
        match epoll::wait(&self.epoll, spare_capacity(&mut self.events), Some(&timeout)) {
            Ok(ready) => Ok(ready),
            Err(rustix::io::Errno::INTR) => Ok(0),
            Err(error) => Err(error).doing("waiting for replies"),
        }
    }

    fn elapsed_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    fn silent(&self) -> BenchError {
        BenchError::Server(format!(
            "{} has sent nothing for {} s, with {} requests waiting",
            self.config.address,
            SILENCE_MAX.as_secs(),
            self.in_flight
        ))
    }
}

/// Bytes of keys, members and values that the request writes.
fn payload_size(op: Op, value_size: usize) -> u64 {
    let pair_size = (KEY_SIZE + value_size) as u64;
    match op {
        Op::Set { .. } => pair_size,
        Op::MSet { len, .. } => len * pair_size,
        Op::Get { .. } | Op::MGet { .. } | Op::ReadModifyWrite { .. } => 0,
        Op::Element(op) => op.payload_size(value_size),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::ValuePool;

    /// The length of each wait: far shorter than the shortest wait in whole milliseconds.
    const SHORT: Duration = Duration::from_micros(100);
    /// Number of waits. A busy machine makes some of them long, but not all.
    const WAITS_MAX: usize = 2000;

    #[test]
    fn a_wait_can_be_shorter_than_a_millisecond() {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let config = LoadConfig {
            address: Address::Tcp(listener.local_addr().unwrap()),
            clients: 1,
            pipeline: 1,
            arrival: Arrival::Closed,
            check_values: false,
            seed: 1,
        };
        let mix = Mix::named("set", 100, None).unwrap();
        let writer = RequestWriter::new(ValuePool::new(64, 0.5, 1));
        let mut generator = Generator::connect(config, mix, writer).unwrap();
        let mut shortest = Duration::MAX;
        for _ in 0..WAITS_MAX {
            let began = Instant::now();
            assert_eq!(
                generator.wait(SHORT).unwrap(),
                0,
                "no event arrives, because the server is silent"
            );
            shortest = shortest.min(began.elapsed());
            if shortest < 5 * SHORT {
                break;
            }
        }
        assert!(shortest >= SHORT, "the generator spun instead of waiting: {shortest:?}");
        assert!(shortest < 5 * SHORT, "a wait of {SHORT:?} took {shortest:?} at best");
    }
}

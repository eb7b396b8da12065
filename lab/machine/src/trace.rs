//! Reads the kernel's trace of block requests: how long a device was busy between two marks.

/// What happened between the marks `begin` and `end`, with times in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Busy {
    /// The time from one mark to the other.
    pub(super) total_us: f64,
    /// The time in which the device had at least one request.
    pub(super) device_us: f64,
    /// The number of requests that were sent to the device.
    pub(super) requests: u64,
}

enum Event {
    Issued,
    Completed,
    Begin,
    End,
}

/// Reads a trace of `block_rq_issue`, `block_rq_complete` and marks. `None` if one of the marks is
/// missing.
pub(super) fn busy(trace: &str) -> Option<Busy> {
    let mut found = Busy::default();
    let (mut begun_at, mut busy_since) = (None, None);
    let mut in_flight = 0u32;
    for (at, event) in trace.lines().filter_map(event) {
        match event {
            Event::Issued => {
                found.requests += 1;
                in_flight += 1;
                busy_since = busy_since.or(Some(at));
            }
            Event::Completed => {
                // A request that was issued before the trace began may complete during the trace.
                in_flight = in_flight.saturating_sub(1);
                if in_flight == 0 {
                    found.device_us += busy_since.take().map_or(0.0, |since| at - since);
                }
            }
            Event::Begin => {
                found = Busy::default();
                begun_at = Some(at);
                busy_since = busy_since.map(|_| at);
            }
            Event::End => {
                found.total_us = at - begun_at?;
                found.device_us += busy_since.map_or(0.0, |since| at - since);
                return Some(found);
            }
        }
    }
    None
}

/// Parses `NAME-PID [CPU] FLAGS SECONDS: EVENT: WHAT`. Returns the time in microseconds, and the
/// event.
fn event(line: &str) -> Option<(f64, Event)> {
    let mut words = line.split_whitespace();
    let name = words.by_ref().position(|word| word.ends_with(']') && word.starts_with('['));
    name?;
    let mut words = words.skip(1);
    let seconds: f64 = words.next()?.strip_suffix(':')?.parse().ok()?;
    let event = match (words.next()?, words.next()?) {
        ("block_rq_issue:", _) => Event::Issued,
        ("block_rq_complete:", _) => Event::Completed,
        ("tracing_mark_write:", "begin") => Event::Begin,
        ("tracing_mark_write:", "end") => Event::End,
        _ => return None,
    };
    Some((seconds * 1e6, event))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_busy_from_the_first_issue_to_the_last_completion() {
        let trace = "\
# tracer: nop
      write_time-112     [001] d..1.    10.000000: block_rq_issue: 259,0 WS 4096 () 8 + 8 [x]
          <idle>-0       [000] d.h1.    10.000090: block_rq_complete: 259,0 WS () 8 + 8 [0]
      write_time-112     [001] .....    10.000100: tracing_mark_write: begin
      write_time-112     [001] d..1.    10.000150: block_rq_issue: 259,0 WS 4096 () 8 + 8 [x]
 jbd2/nvme0n1-8-99       [000] d..1.    10.000160: block_rq_issue: 259,0 FF 0 () 0 + 0 [x]
          <idle>-0       [000] d.h1.    10.000200: block_rq_complete: 259,0 WS () 8 + 8 [0]
          <idle>-0       [000] d.h1.    10.000250: block_rq_complete: 259,0 FF () 0 + 0 [0]
      write_time-112     [001] d..1.    10.000300: block_rq_issue: 259,0 N 0 () 0 + 0 [x]
          <idle>-0       [000] d.h1.    10.000320: block_rq_complete: 259,0 N () 0 + 0 [0]
      write_time-112     [001] .....    10.000400: tracing_mark_write: end
      write_time-112     [001] d..1.    10.000450: block_rq_issue: 259,0 N 0 () 0 + 0 [x]
";
        let found = busy(trace).unwrap();
        assert_eq!(found.requests, 3);
        assert!((found.total_us - 300.0).abs() < 0.1, "{found:?}");
        assert!((found.device_us - 120.0).abs() < 0.1, "{found:?}");
        assert_eq!(busy(trace.split_once("end").unwrap().0), None);
    }
}

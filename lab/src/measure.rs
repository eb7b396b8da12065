//! Measures the cost of a stretch of load, by counters that are read before and after the stretch.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use crate::block::{BlockDevice, DeviceCounters, sync_file_system};
use crate::error::Result;
use crate::load::PhaseReport;
use crate::proc::{self, CpuTime};
use crate::server::{Server, ServerKind};
use crate::stalls::StallMeter;
use crate::tree::tree_size;

/// The shortest CPU time that is reported. The kernel counts in steps of 10 ms, so fewer than ten
/// steps say nothing.
pub(crate) const CPU_MEASURABLE_MIN: Duration = Duration::from_millis(100);
/// A log that has not grown for this long counts as complete, because SlimIO flushes records that
/// are half a second old.
const SETTLED_AFTER: Duration = Duration::from_millis(800);
/// If a log still grows after this long without load, its size at that moment is taken.
const SETTLING_MAX: Duration = Duration::from_secs(5);
const SETTLING_LOOK_EVERY: Duration = Duration::from_millis(50);

/// Results by name; the unit is in the name. A result that was not measured is missing.
pub type Metrics = BTreeMap<&'static str, f64>;

/// Counters at the start of a stretch.
#[derive(Debug)]
pub struct Window {
    pid: u32,
    device: Option<BlockDevice>,
    device_before: Option<DeviceCounters>,
    written_before: Option<u64>,
    log_before: LogSize,
    pss_before_bytes: u64,
    server_before: CpuTime,
    machine_before: CpuTime,
    own_before: CpuTime,
    children_before: CpuTime,
    stalls: StallMeter,
    started: Instant,
}

/// CPU times over a stretch, and how long the machine kept a runnable thread waiting.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    server: CpuTime,
    machine: CpuTime,
    own: CpuTime,
    elapsed_s: f64,
    stall_us_p999: f64,
}

impl Window {
    /// Writes out the dirty pages of the file system, then reads the counters. CPU time is read
    /// last.
    pub fn open(server: &Server) -> Result<Self> {
        let directory = &server.config().directory;
        sync_file_system(directory)?;
        let device = BlockDevice::below(directory)?;
        let pid = server.pid();
        Ok(Self {
            pid,
            device_before: device.as_ref().and_then(BlockDevice::counters),
            device,
            written_before: proc::written_bytes(pid),
            log_before: LogSize::of(server)?,
            pss_before_bytes: proc::pss_bytes(pid)?,
            machine_before: CpuTime::of_machine()?,
            own_before: CpuTime::of_self()?,
            children_before: CpuTime::of_reaped_children()?,
            server_before: CpuTime::of_process(pid)?,
            stalls: StallMeter::start()?,
            started: Instant::now(),
        })
    }

    /// CPU times since the start of the stretch. Call this right after the last reply.
    pub fn cost(&self) -> Result<Cost> {
        let server = CpuTime::of_process(self.pid)?.since(self.server_before);
        let own = CpuTime::of_self()?.since(self.own_before);
        let children = CpuTime::of_reaped_children()?.since(self.children_before);
        Ok(Cost {
            server,
            machine: CpuTime::of_machine()?.since(self.machine_before),
            own: CpuTime { user: own.user + children.user, system: own.system + children.system },
            elapsed_s: self.started.elapsed().as_secs_f64(),
            stall_us_p999: self.stalls.p999_us(),
        })
    }

    /// Writes out the dirty pages of the file system, and reads how many bytes went to the device
    /// and to the log.
    pub fn close(
        self,
        server: &Server,
        cost: Cost,
        requests: u64,
        payload_bytes: u64,
    ) -> Result<Metrics> {
        let mut metrics = Metrics::new();
        let per_request_us = |cpu: Duration| cpu.as_secs_f64() * 1e6 / requests as f64;
        if cost.server.total() >= CPU_MEASURABLE_MIN {
            metrics.insert("server_cpu_us_per_request", per_request_us(cost.server.total()));
            metrics.insert("server_user_us_per_request", per_request_us(cost.server.user));
            metrics.insert("server_system_us_per_request", per_request_us(cost.server.system));
        }
        metrics.insert("machine_cpu_us_per_request", per_request_us(cost.machine.total()));
        metrics.insert("client_cpu_us_per_request", per_request_us(cost.own.total()));
        let cores = |cpu: Duration| cpu.as_secs_f64() / cost.elapsed_s;
        let ours = cost.server.total() + cost.own.total();
        metrics.insert("server_cores_busy", cores(cost.server.total()));
        metrics.insert("machine_stall_us_p999", cost.stall_us_p999);
        metrics.insert("other_cores_busy", cores(cost.machine.total().saturating_sub(ours)));

        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        metrics.insert("pss_mib_before", mib(self.pss_before_bytes));
        metrics.insert("pss_mib", mib(proc::pss_bytes(self.pid)?));
        let log_after = LogSize::settled(server)?;
        sync_file_system(&server.config().directory)?;
        if payload_bytes == 0 {
            return Ok(metrics);
        }
        let payload = payload_bytes as f64;
        let device_after = self.device.as_ref().and_then(BlockDevice::counters);
        if let (Some(after), Some(before)) = (device_after, self.device_before) {
            let done = after.since(before);
            metrics.insert("device_bytes_per_payload_byte", done.written_bytes as f64 / payload);
            metrics.insert("device_writes_per_request", done.write_count as f64 / requests as f64);
            metrics.insert("device_flushes_per_request", done.flush_count as f64 / requests as f64);
        }
        if let (Some(after), Some(before)) = (proc::written_bytes(self.pid), self.written_before) {
            let written = after.saturating_sub(before) as f64;
            metrics.insert("process_write_bytes_per_payload_byte", written / payload);
        }
        let grown = |after: Option<u64>, before: Option<u64>| {
            Some(after?.saturating_sub(before.unwrap_or(0)) as f64)
        };
        if let Some(log) = grown(log_after.bytes, self.log_before.bytes) {
            metrics.insert("log_bytes_per_payload_byte", log / payload);
            if let Some(records) = grown(log_after.record_bytes, self.log_before.record_bytes)
                && records > 0.0
            {
                metrics.insert("log_bytes_per_record_byte", log / records);
            }
        }
        Ok(metrics)
    }
}

/// The size of a server's log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogSize {
    /// Bytes of log, framing and padding included.
    pub bytes: Option<u64>,
    /// Bytes of the records in the log.
    pub record_bytes: Option<u64>,
}

impl LogSize {
    /// Waits until the server has written everything, and then returns [`LogSize::of`]. Stock Redis
    /// writes before it replies, but SlimIO may keep records for a while in memory that outlives
    /// the process.
    pub fn settled(server: &Server) -> Result<Self> {
        let mut size = Self::of(server)?;
        if server.config().kind == ServerKind::Stock || size.bytes.is_none() {
            return Ok(size);
        }
        let begun = Instant::now();
        let mut same_since = begun;
        while same_since.elapsed() < SETTLED_AFTER && begun.elapsed() < SETTLING_MAX {
            thread::sleep(SETTLING_LOOK_EVERY);
            let now = Self::of(server)?;
            if now != size {
                size = now;
                same_since = Instant::now();
            }
        }
        Ok(size)
    }

    /// The size of a running server's log. For a stock server, this is the size of the append-only
    /// files, which hold nothing but records. SlimIO reports the size in its own counters. A size
    /// is `None` if its counter is missing.
    pub fn of(server: &Server) -> Result<Self> {
        match server.config().kind {
            ServerKind::Stock => {
                let directory = server.config().data_directory().join("appendonlydir");
                if !directory.exists() {
                    return Ok(Self::default());
                }
                let size = tree_size(&directory)?;
                Ok(Self { bytes: Some(size), record_bytes: Some(size) })
            }
            ServerKind::SlimIO => {
                let info = server.client()?.info("slimio")?;
                let field = |name| info.get(name).and_then(|text| text.trim().parse().ok());
                Ok(Self { bytes: field("log_area_bytes"), record_bytes: field("log_record_bytes") })
            }
        }
    }
}

/// Throughput and latency of a phase, as metrics.
pub fn phase_metrics(report: &PhaseReport) -> Metrics {
    let mut metrics = Metrics::from([
        ("requests_per_s", report.requests_per_s()),
        ("latency_us_p50", report.latency_us(50.0)),
        ("latency_us_p99", report.latency_us(99.0)),
        ("latency_us_p999", report.latency_us(99.9)),
        ("latency_us_max", report.latency_us_max()),
        ("requests", report.requests as f64),
    ]);
    let reads = report.hits + report.misses;
    if reads > 0 {
        metrics.insert("hit_share", report.hits as f64 / reads as f64);
    }
    if !report.own_lag.is_empty() {
        let lag_us = report.own_lag.value_at_percentile(99.9) as f64 / 1000.0;
        metrics.insert("client_lag_us_p999", lag_us);
        metrics.insert("never_sent", report.never_sent as f64);
    }
    metrics
}

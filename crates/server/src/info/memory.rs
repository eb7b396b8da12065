//! Memory as `INFO`, `MEMORY STATS` and `MEMORY DOCTOR` show it.
//!
//! Memory in use is the sum of four parts: the data set, the clients' buffers, the log's mapped
//! buffers, and the memory held for a snapshot. Sizes in the data set are rounded up as the
//! allocator rounds them. The rest of the resident memory is the program itself, free memory that
//! the allocator retains, and the allocator's own tables.

use super::{ClientFigures, Text, human};
use crate::AllocatorBytes;
use crate::clients::Client;
use crate::engine::{Engine, MemoryUse};

/// Resident memory of the process, in bytes; 0 if it cannot be read.
pub(crate) fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split(' ').nth(1).and_then(|n| n.parse().ok()).unwrap_or(0);
    pages * rustix::param::page_size() as u64
}

/// Memory of the machine, in bytes; 0 if it cannot be read.
fn machine_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kilobytes = line.and_then(|rest| rest.trim().split(' ').next()?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}

fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

/// The data's share of the memory that was added since the start, in percent.
fn dataset_percent(memory: &MemoryUse) -> f64 {
    100.0 * ratio(dataset(memory), memory.used.saturating_sub(memory.startup))
}

/// Memory in use for keys and values.
fn dataset(memory: &MemoryUse) -> u64 {
    memory.used.saturating_sub(memory.overhead)
}

pub(super) fn section(text: &mut Text, engine: &Engine) {
    let memory = text.memory;
    let resident = resident_bytes();
    let allocator = allocator_bytes(&memory, resident);
    text.bytes("used_memory", memory.used);
    text.bytes("used_memory_rss", resident);
    text.bytes("used_memory_peak", memory.peak);
    let peak_percent = 100.0 * ratio(memory.used, memory.peak);
    text.field("used_memory_peak_perc", format_args!("{peak_percent:.2}%"));
    text.field("used_memory_overhead", memory.overhead);
    text.field("used_memory_startup", memory.startup);
    text.field("used_memory_dataset", dataset(&memory));
    text.field("used_memory_dataset_perc", format_args!("{:.2}%", dataset_percent(&memory)));
    text.field("allocator_allocated", allocator.allocated);
    text.field("allocator_active", allocator.active);
    text.field("allocator_resident", allocator.resident);
    text.bytes("total_system_memory", machine_bytes());
    // Memory of scripts and functions, which this server does not have.
    text.field("used_memory_lua", 0);
    text.field("used_memory_vm_eval", 0);
    text.field("used_memory_lua_human", human(0));
    text.field("used_memory_scripts_eval", 0);
    text.field("number_of_cached_scripts", 0);
    text.field("number_of_functions", 0);
    text.field("number_of_libraries", 0);
    text.field("used_memory_vm_functions", 0);
    text.bytes("used_memory_vm_total", 0);
    text.field("used_memory_functions", 0);
    text.bytes("used_memory_scripts", 0);
    text.bytes("maxmemory", engine.settings.memory_max);
    text.field("maxmemory_policy", engine.config.choice("maxmemory-policy"));
    let fragmentation = resident as i64 - memory.used as i64;
    for (name, part, whole) in allocator.ratios(resident) {
        text.field(&format!("{name}_ratio"), format_args!("{:.2}", ratio(part, whole)));
        text.field(&format!("{name}_bytes"), part as i64 - whole as i64);
    }
    text.field("mem_fragmentation_ratio", format_args!("{:.2}", ratio(resident, memory.used)));
    text.field("mem_fragmentation_bytes", fragmentation);
    text.field("mem_not_counted_for_evict", memory.uncounted);
    text.field("mem_replication_backlog", 0);
    text.field("mem_total_replication_buffers", 0);
    text.field("mem_clients_slaves", 0);
    text.field("mem_clients_normal", memory.clients);
    text.field("mem_cluster_links", 0);
    text.field("mem_aof_buffer", log_backlog(engine));
    text.field("mem_allocator", crate::allocator().name);
    text.field("active_defrag_running", 0);
    text.field("lazyfree_pending_objects", engine.data.freeing.pending());
    text.field("lazyfreed_objects", engine.data.freeing.freed());
}

/// Bytes in the log's buffers that are not durable yet.
fn log_backlog(engine: &Engine) -> u64 {
    engine.gate.wal.as_ref().map_or(0, |wal| wal.stats().backlog_bytes)
}

/// The allocator's counters, or an estimate if the allocator has no counters.
fn allocator_bytes(memory: &MemoryUse, resident: u64) -> AllocatorBytes {
    let unknown = AllocatorBytes { allocated: memory.used, active: resident, resident };
    (crate::allocator().bytes)().unwrap_or(unknown)
}

impl AllocatorBytes {
    /// The ratios that INFO shows: the name of each ratio in INFO, and the two numbers that the
    /// ratio is made of.
    fn ratios(&self, process: u64) -> [(&'static str, u64, u64); 3] {
        [
            ("allocator_frag", self.active, self.allocated),
            ("allocator_rss", self.resident, self.active),
            ("rss_overhead", process, self.resident),
        ]
    }
}

/// A number of `MEMORY STATS`.
enum Figure {
    Count(i64),
    Share(f64),
}

/// `MEMORY STATS`: Redis's own names, in the order of Redis.
pub(crate) fn stats(engine: &mut Engine, clients: ClientFigures, client: &mut Client) {
    let memory = engine.memory_use(clients.memory);
    let resident = resident_bytes();
    let keys: usize = engine.data.dbs().map(|db| engine.data.keyspace.dbsize(db)).sum();
    let count = |value: u64| Figure::Count(value as i64);
    let fragmentation = Figure::Count(resident as i64 - memory.used as i64);
    let allocator = allocator_bytes(&memory, resident);
    let [frag, rss, overhead] = allocator.ratios(resident);
    let share = |(_, part, whole): (&str, u64, u64)| Figure::Share(ratio(part, whole));
    let excess = |(_, part, whole): (&str, u64, u64)| Figure::Count(part as i64 - whole as i64);
    let per_key = memory.used.saturating_sub(memory.startup).checked_div(keys as u64).unwrap_or(0);
    let filled: Vec<_> =
        engine.data.dbs().filter(|db| engine.data.keyspace.dbsize(*db) > 0).collect();
    let before = [
        ("peak.allocated", count(memory.peak)),
        ("total.allocated", count(memory.used)),
        ("startup.allocated", count(memory.startup)),
        ("replication.backlog", count(0)),
        ("clients.slaves", count(0)),
        ("clients.normal", count(memory.clients)),
        ("cluster.links", count(0)),
        ("aof.buffer", count(log_backlog(engine))),
        ("lua.caches", count(0)),
        ("functions.caches", count(0)),
    ];
    let behind = [
        ("overhead.total", count(memory.overhead)),
        ("keys.count", count(keys as u64)),
        ("keys.bytes-per-key", count(per_key)),
        ("dataset.bytes", count(dataset(&memory))),
        ("dataset.percentage", Figure::Share(dataset_percent(&memory))),
        ("peak.percentage", Figure::Share(100.0 * ratio(memory.used, memory.peak))),
        ("allocator.allocated", count(allocator.allocated)),
        ("allocator.active", count(allocator.active)),
        ("allocator.resident", count(allocator.resident)),
        ("allocator-fragmentation.ratio", share(frag)),
        ("allocator-fragmentation.bytes", excess(frag)),
        ("allocator-rss.ratio", share(rss)),
        ("allocator-rss.bytes", excess(rss)),
        ("rss-overhead.ratio", share(overhead)),
        ("rss-overhead.bytes", excess(overhead)),
        ("fragmentation", Figure::Share(ratio(resident, memory.used))),
        ("fragmentation.bytes", fragmentation),
    ];
    let out = &mut client.out;
    out.map(before.len() + filled.len() + behind.len());
    let put = |client: &mut Client, name: &str, figure: &Figure| {
        client.out.bulk(name.as_bytes());
        match figure {
            Figure::Count(value) => client.out.integer(*value),
            Figure::Share(value) => client.out.double(*value),
        }
    };
    for (name, figure) in &before {
        put(client, name, figure);
    }
    for db in filled {
        client.out.bulk(format!("db.{}", db.0).as_bytes());
        client.out.map(3);
        let table = engine.data.keyspace.table_bytes_of(db) as u64;
        put(client, "overhead.hashtable.main", &count(table));
        // There is no table of the keys that expire, because a bit in the main table marks these
        // keys.
        put(client, "overhead.hashtable.expires", &count(0));
        put(client, "overhead.hashtable.slot-to-keys", &count(0));
    }
    for (name, figure) in &behind {
        put(client, name, figure);
    }
}

/// If fewer bytes than this are in use, `MEMORY DOCTOR` gives no advice.
const DOCTOR_USED_MIN: u64 = 5 << 20;
/// The clients' buffers are too large if their mean size per client is more than this many bytes.
const DOCTOR_CLIENT_MAX: u64 = 200 << 10;

/// `MEMORY DOCTOR`: what is wrong, and what can be done about it.
pub(crate) fn doctor(engine: &mut Engine, clients: ClientFigures) -> String {
    let memory = engine.memory_use(clients.memory);
    let resident = resident_bytes();
    if memory.used < DOCTOR_USED_MIN {
        return "Less than 5 MB of memory is in use. This is too little memory for any advice."
            .into();
    }
    let mut advice = Vec::new();
    if memory.peak > memory.used / 2 * 3 {
        advice.push(
            "Peak memory: much less memory is in use now than at the peak. The allocator returns \
             the freed memory to the system within seconds.",
        );
    }
    if resident > memory.used / 5 * 7 && resident - memory.used > 10 << 20 {
        advice.push(
            "High fragmentation: the process holds more than 1.4 times the memory in use. After a \
             large deletion, the fragmentation passes by itself. If it stays, values of very \
             different sizes have replaced each other, and a restart compacts the memory.",
        );
    }
    if memory.clients / clients.count.max(1) as u64 > DOCTOR_CLIENT_MAX {
        advice.push(
            "Big client buffers: the clients take more than 200 KB each on average. Use CLIENT \
             LIST to find the clients that do not read their replies, and limit their buffers with \
             client-output-buffer-limit.",
        );
    }
    let limit = engine.settings.memory_max;
    if limit > 0 && memory.used.saturating_sub(memory.uncounted) > limit {
        advice.push(
            "Over the limit: more memory is in use than maxmemory allows. Raise maxmemory, delete \
             keys, or choose a maxmemory-policy that may evict keys.",
        );
    }
    if advice.is_empty() {
        return "No memory problem was found.".into();
    }
    advice.join("\n")
}

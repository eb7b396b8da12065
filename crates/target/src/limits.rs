//! Every limit of the target. Whatever hosts do, these numbers bound the target's use of memory,
//! threads and time.

use std::time::Duration;

/// Number of connections at the same time. Each queue of each controller has one connection.
/// Further connections are closed at once.
pub const CONNECTIONS_MAX: usize = 288;
/// Number of connections whose Connect has not come yet. If a further connection comes, the oldest
/// of these connections is closed.
pub const UNCONNECTED_MAX: usize = 32;
/// Number of controllers at the same time, including those for discovery.
pub const CONTROLLERS_MAX: usize = 64;
/// Number of I/O queues of a controller. Ten hosts can have that many queues each at the same time.
pub const IO_QUEUES_MAX: u16 = 24;
const _: () = assert!(10 * (1 + IO_QUEUES_MAX as usize) + UNCONNECTED_MAX <= CONNECTIONS_MAX);
/// Number of entries of a queue, whether admin or I/O.
pub const QUEUE_DEPTH_MAX: u16 = 128;
/// Size of one command's data, in bytes. In NVMe, this is MDTS: 2^7 pages.
pub const TRANSFER_SIZE_MAX: usize = 512 << 10;
/// Size of one command's in-capsule data, in bytes. So a write of 4 KiB needs no R2T.
pub const IN_CAPSULE_SIZE_MAX: usize = 8192;
/// Size of the data in one H2CData, in bytes. In NVMe/TCP, this is MAXH2CDATA.
pub const H2C_DATA_SIZE_MAX: usize = 128 << 10;
/// Number of received bytes that are not processed yet. This is more than the longest PDU.
pub const INBOX_SIZE: usize = 256 << 10;
/// While this many bytes wait to be sent, the session makes no replies and takes no input.
pub const OUTBOX_SIZE_MAX: usize = 256 << 10;
/// Memory for the data of one connection's commands, in bytes. In-capsule data does not count,
/// because [`QUEUE_DEPTH_MAX`] bounds such data. Commands wait, in order, if no memory is left.
pub const DATA_SIZE_MAX: usize = 8 << 20;
/// Memory for the data of all connections' commands, in bytes. This does not include in-capsule
/// data, nor each connection's own share, which is enough for two of the longest transfers.
pub const DATA_BUDGET: usize = 128 << 20;
/// Number of each controller's outstanding requests for asynchronous events.
pub const ASYNC_REQUESTS_MAX: usize = 4;
/// Number of each controller's asynchronous events that wait for a request. Further events are
/// dropped.
pub const ASYNC_EVENTS_MAX: usize = 8;
/// Number of entries of the error log.
pub const ERRORS_MAX: usize = 64;
/// Number of blocks that Write Zeroes writes in one operation. A longer command takes several
/// operations, one after the other.
pub const ZEROED_AT_ONCE_LBAS: u64 = 32;
/// Number of blocks that one operation deallocates. The drive is locked during an operation, so a
/// longer range takes several operations.
pub const DEALLOCATED_AT_ONCE_LBAS: u64 = 16 << 10;
/// Number of deallocations that a connection has in flight.
pub const DEALLOCATIONS_MAX: usize = 8;
// Even the smallest journal of a drive keeps room for 4096 deallocations that have no effect yet.
// The rest of the journal is enough for writes.
const _: () = assert!(CONNECTIONS_MAX * DEALLOCATIONS_MAX < 4096);
/// Number of hosts on the list of allowed hosts.
pub const ALLOWED_MAX: usize = 1024;

/// How long a new connection may take until its Connect.
pub const CONNECT_TIME_MAX: Duration = Duration::from_secs(10);
/// How long a host may send no data at all after an R2T has asked the host for data.
pub const TRANSFER_TIME_MAX: Duration = Duration::from_secs(30);
/// How long the host may send no data for one transfer while it sends data for other transfers.
pub const ONE_TRANSFER_TIME_MAX: Duration = Duration::from_secs(600);
/// How long a host may receive none of the bytes that wait to be sent.
pub const SEND_TIME_MAX: Duration = Duration::from_secs(30);
/// A discovery controller without a keep alive timeout ends after this long without a command.
pub const DISCOVERY_TIME_MAX: Duration = Duration::from_secs(120);
/// The kernel ends a connection if the host's machine has not answered for this long.
pub const UNREACHABLE_TIME_MAX: Duration = Duration::from_secs(120);
/// The longest keep alive timeout that a host may ask for.
pub const KEEP_ALIVE_MAX: Duration = Duration::from_secs(3600);

//! Every limit of the target. What a host may use of it is bounded by these numbers, whatever the
//! host does.

use std::time::Duration;

/// Connections at once: one for each queue of each controller. One more is closed at once.
pub const CONNECTIONS_MAX: usize = 288;
/// Those of them that had no Connect yet. For one more, the oldest gives way.
pub const UNCONNECTED_MAX: usize = 32;
/// Controllers at once, those for discovery included.
pub const CONTROLLERS_MAX: usize = 64;
/// I/O queues of a controller. Ten hosts can have all of theirs at once.
pub const IO_QUEUES_MAX: u16 = 24;
const _: () = assert!(10 * (1 + IO_QUEUES_MAX as usize) + UNCONNECTED_MAX <= CONNECTIONS_MAX);
/// Entries of a queue, admin or I/O.
pub const QUEUE_DEPTH_MAX: u16 = 128;
/// Data of one command, in bytes: NVMe's MDTS, 2^7 pages.
pub const TRANSFER_SIZE_MAX: usize = 512 << 10;
/// In-capsule data of a command, in bytes. A write of 4 KiB needs no R2T.
pub const IN_CAPSULE_SIZE_MAX: usize = 8192;
/// Data of one H2CData, in bytes: NVMe/TCP's MAXH2CDATA.
pub const H2C_DATA_SIZE_MAX: usize = 128 << 10;
/// Bytes that were received and not taken yet; more than the longest PDU.
pub const INBOX_SIZE: usize = 256 << 10;
/// When this many bytes wait to be sent, no more replies are made and nothing is received.
pub const OUTBOX_SIZE_MAX: usize = 256 << 10;
/// Memory for data of the commands of one connection, in bytes, beside in-capsule data, which
/// [`QUEUE_DEPTH_MAX`] bounds. A command for which there is none waits, in its order.
pub const DATA_SIZE_MAX: usize = 8 << 20;
/// Memory for data of the commands of all connections, in bytes, beside in-capsule data and beside two
/// of the longest transfers for each connection.
pub const DATA_BUDGET: usize = 128 << 20;
/// Requests for asynchronous events that are outstanding, of each controller.
pub const ASYNC_REQUESTS_MAX: usize = 4;
/// Asynchronous events that wait for a request, of each controller. One more is dropped.
pub const ASYNC_EVENTS_MAX: usize = 8;
/// Entries of the error log.
pub const ERRORS_MAX: usize = 64;
/// Blocks that one operation of Write Zeroes writes. A longer command takes several, one after the
/// other.
pub const ZEROED_AT_ONCE_LBAS: u64 = 32;
/// Blocks that one operation deallocates. A drive is locked meanwhile, so a longer range takes
/// several.
pub const DEALLOCATED_AT_ONCE_LBAS: u64 = 16 << 10;
/// Deallocations of a connection that are in flight.
pub const DEALLOCATIONS_MAX: usize = 8;
// The least journal of a drive keeps room for 4096 that have no effect yet. Writes need no more than
// the rest.
const _: () = assert!(CONNECTIONS_MAX * DEALLOCATIONS_MAX < 4096);
/// Names of hosts that are allowed.
pub const ALLOWED_MAX: usize = 1024;

/// Time for a new connection until its Connect.
pub const CONNECT_TIME_MAX: Duration = Duration::from_secs(10);
/// Time without data from a host that was asked for some by R2T.
pub const TRANSFER_TIME_MAX: Duration = Duration::from_secs(30);
/// Time without data of one transfer, while that of others comes.
pub const ONE_TRANSFER_TIME_MAX: Duration = Duration::from_secs(600);
/// Time in which the host takes none of the bytes that wait for it.
pub const SEND_TIME_MAX: Duration = Duration::from_secs(30);
/// Time without a command for a discovery controller that has no keep alive timeout.
pub const DISCOVERY_TIME_MAX: Duration = Duration::from_secs(120);
/// Time until a host whose machine does not answer any more, or can't be reached, is given up.
pub const UNREACHABLE_TIME_MAX: Duration = Duration::from_secs(120);
/// The longest keep alive timeout that a host may ask for.
pub const KEEP_ALIVE_MAX: Duration = Duration::from_secs(3600);

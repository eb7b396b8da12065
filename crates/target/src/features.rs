//! Get Features and Set Features. Source: base specification 2.1, 5.1.11 and 5.1.25.

use std::time::Instant;

use slimio_nvme::feature::{FeatureAccess, Select, event, fid, of_queue_count, queue_counts};
use slimio_nvme::{Command, NSID_ALL, Status};
use slimio_ssd::{EventKind, FtlError};

use crate::controller::{Controller, Kind};
use crate::limits::{IO_QUEUES_MAX, KEEP_ALIVE_MAX};
use crate::refusal::Refusal;
use crate::reply::Reply;
use crate::subsystem::{ENDURANCE_GROUP, NSID, Subsystem};

/// Offsets of two dwords in the command, for errors.
const CDW10: u16 = 40;
const CDW11: u16 = 44;
/// Sizes in bytes of the data of three features: Timestamp, Host Behavior Support, and Host
/// Identifier.
const TIMESTAMP_SIZE: usize = 8;
const HOST_BEHAVIOR_SIZE: usize = 512;
const HOST_ID_SIZE: usize = 16;
/// The type of an FDP event: a reclaim unit was not written to its end in time.
const UNIT_TIMED_OUT: u8 = 1;
/// Size in bytes of a descriptor that the feature FDP Events returns.
const EVENT_DESCRIPTOR_SIZE: usize = 2;

/// The features of a controller that hosts may change.
#[derive(Debug)]
pub(crate) struct Features {
    arbitration: u32,
    power_state: u32,
    temperature_over: u16,
    temperature_under: u16,
    error_recovery: u32,
    pub(crate) is_cache_enabled: bool,
    queues: u32,
    write_atomicity: u32,
    async_events: u32,
    pub(crate) keep_alive_ms: u32,
    host_behavior: [u8; 3],
    /// The time that the host has set, in milliseconds, and the moment when the host set it.
    timestamp: Option<(u64, Instant)>,
}

/// Default of the threshold for a temperature that is too high, in kelvin.
const TEMPERATURE_MAX: u16 = 358;

impl Features {
    pub(crate) fn new(keep_alive_ms: u32) -> Self {
        Self {
            arbitration: 0,
            power_state: 0,
            temperature_over: TEMPERATURE_MAX,
            temperature_under: 0,
            error_recovery: 0,
            is_cache_enabled: true,
            queues: of_queue_count(IO_QUEUES_MAX.into()),
            write_atomicity: 0,
            async_events: 0,
            keep_alive_ms,
            host_behavior: [0; 3],
            timestamp: None,
        }
    }

    /// The value of Timestamp, in milliseconds: the time that the host has set, plus the time since
    /// then. If the host has set no time, the value is the time since the subsystem was made. A bit
    /// says whether the host has set the time. Source: base specification 2.1, figure 396.
    fn timestamp(&self, start: Instant, now: Instant) -> u64 {
        const OF_HOST: u64 = 1 << 49;
        let (ms, since, origin) = match self.timestamp {
            Some((ms, at)) => (ms, at, OF_HOST),
            None => (0, start, 0),
        };
        let ms = ms + now.saturating_duration_since(since).as_millis() as u64;
        ms & 0xffff_ffff_ffff | origin
    }
}

/// Number of bytes that Set Features takes from the host for a command.
pub(crate) fn data_size_to_set(command: &Command) -> usize {
    let access = FeatureAccess::of(command);
    match access.fid {
        fid::TIMESTAMP => TIMESTAMP_SIZE,
        fid::HOST_BEHAVIOR => HOST_BEHAVIOR_SIZE,
        fid::FDP_EVENTS => (access.cdw11 >> 16 & 0xff) as usize,
        _ => 0,
    }
}

/// Number of bytes that Get Features returns for a command.
pub(crate) fn data_size_to_get(command: &Command) -> usize {
    let access = FeatureAccess::of(command);
    if access.select == Select::Capabilities {
        return 0;
    }
    match access.fid {
        fid::TIMESTAMP => TIMESTAMP_SIZE,
        fid::HOST_BEHAVIOR => HOST_BEHAVIOR_SIZE,
        fid::HOST_ID => HOST_ID_SIZE,
        fid::FDP_EVENTS => event_room(access.cdw11) * EVENT_DESCRIPTOR_SIZE,
        _ => 0,
    }
}

/// Number of event types for which a host has room. A host that gives no number has room for all.
fn event_room(cdw11: u32) -> usize {
    match cdw11 >> 16 & 0xff {
        0 => 0xff,
        count => count as usize,
    }
}

/// Whether a controller has a feature. A discovery controller has only two features.
fn is_supported(subsystem: &Subsystem, controller: &Controller, id: u8) -> bool {
    match id {
        fid::ASYNC_EVENTS | fid::KEEP_ALIVE => true,
        _ if controller.kind == Kind::Discovery => false,
        fid::ARBITRATION
        | fid::POWER_MANAGEMENT
        | fid::TEMPERATURE_THRESHOLD
        | fid::ERROR_RECOVERY
        | fid::NUMBER_OF_QUEUES
        | fid::WRITE_ATOMICITY
        | fid::TIMESTAMP
        | fid::HOST_BEHAVIOR
        | fid::HOST_ID => true,
        fid::VOLATILE_WRITE_CACHE => subsystem.has_cache,
        fid::FDP | fid::FDP_EVENTS => subsystem.has_fdp(),
        _ => false,
    }
}

/// All features that a controller has.
pub(crate) fn supported(
    subsystem: &Subsystem,
    controller: &Controller,
) -> impl Iterator<Item = u8> {
    (0..=u8::MAX).filter(|id| is_supported(subsystem, controller, *id))
}

/// Whether hosts may change a feature.
fn is_changeable(id: u8) -> bool {
    !matches!(id, fid::HOST_ID | fid::FDP)
}

/// Whether a feature belongs to a namespace. If so, the command must give the namespace's number.
fn is_of_namespace(id: u8) -> bool {
    matches!(id, fid::ERROR_RECOVERY | fid::FDP_EVENTS)
}

/// Serves Get Features.
pub(crate) fn get(
    subsystem: &Subsystem,
    controller: &Controller,
    command: &Command,
    now: Instant,
) -> Result<Reply, Refusal> {
    let access = FeatureAccess::of(command);
    let id = access.fid;
    if !is_supported(subsystem, controller, id) {
        return Err(Refusal::field(CDW10));
    }
    let is_default = match access.select {
        Select::Current => false,
        // No feature can be saved. So the saved value is always the default value.
        Select::Default | Select::Saved => true,
        Select::Capabilities => {
            let bits = u64::from(is_changeable(id)) << 2 | u64::from(is_of_namespace(id)) << 1;
            return Ok(Reply::result(bits));
        }
        Select::Other => return Err(Refusal::field(CDW10 + 1)),
    };
    if is_of_namespace(id) && command.nsid != NSID {
        return Err(Refusal::namespace());
    }
    if id == fid::FDP_EVENTS {
        return get_fdp_events(subsystem, command, access.cdw11);
    }
    let defaults = Features::new(0);
    controller.features(|current| {
        let features = if is_default { &defaults } else { current };
        let value = match id {
            fid::ARBITRATION => features.arbitration.into(),
            fid::POWER_MANAGEMENT => features.power_state.into(),
            fid::TEMPERATURE_THRESHOLD => {
                let (sensor, kind) = (access.cdw11 >> 16 & 0xf, access.cdw11 >> 20 & 3);
                match (sensor, kind) {
                    (0, 0) => features.temperature_over.into(),
                    (0, 1) => features.temperature_under.into(),
                    _ => return Err(Refusal::field(CDW11)),
                }
            }
            fid::ERROR_RECOVERY => features.error_recovery.into(),
            fid::VOLATILE_WRITE_CACHE => features.is_cache_enabled.into(),
            fid::NUMBER_OF_QUEUES => features.queues.into(),
            fid::WRITE_ATOMICITY => features.write_atomicity.into(),
            fid::ASYNC_EVENTS => features.async_events.into(),
            fid::KEEP_ALIVE => features.keep_alive_ms.into(),
            fid::FDP => {
                check_group(access.cdw11)?;
                // Bit 0: placement is enabled. The configuration is number 0.
                1
            }
            fid::TIMESTAMP => {
                let stamp = features.timestamp(subsystem.start, now);
                return Ok(Reply::data(stamp.to_le_bytes().to_vec()));
            }
            fid::HOST_BEHAVIOR => {
                let mut data = vec![0; HOST_BEHAVIOR_SIZE];
                data[..3].copy_from_slice(&features.host_behavior);
                return Ok(Reply::data(data));
            }
            fid::HOST_ID => {
                // Bit 0: the identifier has 128 bits. Over fabrics, there are no shorter
                // identifiers.
                if access.cdw11 & 1 == 0 {
                    return Err(Refusal::field(CDW11));
                }
                return Ok(Reply::data(controller.host_id.to_vec()));
            }
            _ => unreachable!("every supported feature has its own branch"),
        };
        Ok(Reply::result(value))
    })
}

/// Serves Set Features.
pub(crate) fn set(
    subsystem: &Subsystem,
    controller: &Controller,
    command: &Command,
    data: &[u8],
    now: Instant,
) -> Result<Reply, Refusal> {
    let access = FeatureAccess::of(command);
    let (id, value) = (access.fid, access.cdw11);
    if !is_supported(subsystem, controller, id) {
        return Err(Refusal::field(CDW10));
    }
    if access.save {
        return Err(Refusal::at(Status::FEATURE_NOT_SAVEABLE, CDW10 + 3));
    }
    if id == fid::FDP {
        check_group(value)?;
        // Placement can't be turned on or off while the group has a namespace, and the group always
        // has one.
        return Err(Refusal::at(Status::COMMAND_SEQUENCE_ERROR, CDW10));
    }
    if !is_changeable(id) {
        return Err(Refusal::at(Status::FEATURE_NOT_CHANGEABLE, CDW10));
    }
    if is_of_namespace(id) && command.nsid != NSID && command.nsid != NSID_ALL {
        return Err(Refusal::namespace());
    }
    if !is_of_namespace(id) && !matches!(command.nsid, 0 | NSID_ALL) {
        return Err(Refusal::at(Status::FEATURE_NOT_NAMESPACE_SPECIFIC, 4));
    }
    if id == fid::FDP_EVENTS {
        return set_fdp_events(subsystem, command, &access, data);
    }
    let status = controller.status();
    controller.features(|features| {
        match id {
            fid::ARBITRATION => features.arbitration = value,
            // The controller has only power state 0.
            fid::POWER_MANAGEMENT if value & 0x1f != 0 => return Err(Refusal::field(CDW11)),
            fid::POWER_MANAGEMENT => features.power_state = value,
            fid::TEMPERATURE_THRESHOLD => match (value >> 16 & 0xf, value >> 20 & 3) {
                (0 | 0xf, 0) => features.temperature_over = value as u16,
                (0 | 0xf, 1) => features.temperature_under = value as u16,
                _ => return Err(Refusal::field(CDW11)),
            },
            fid::ERROR_RECOVERY => features.error_recovery = value & 0xffff,
            fid::VOLATILE_WRITE_CACHE => features.is_cache_enabled = value & 1 != 0,
            fid::NUMBER_OF_QUEUES => {
                let (submission, completion) = queue_counts(value);
                if submission == 0x1_0000 || completion == 0x1_0000 {
                    return Err(Refusal::field(CDW11));
                }
                if !status.rdy {
                    return Err(Refusal::at(Status::COMMAND_SEQUENCE_ERROR, CDW10));
                }
                // All queues are always available, so the answer does not depend on how many queues
                // the host asks for.
                return Ok(Reply::result(features.queues.into()));
            }
            fid::WRITE_ATOMICITY => features.write_atomicity = value & 1,
            fid::ASYNC_EVENTS => {
                // Bits 0 to 7 are SMART's critical warnings.
                let known = 0xff | event::MASK_NAMESPACE | event::MASK_DISCOVERY;
                if value & !known != 0 {
                    return Err(Refusal::field(CDW11));
                }
                features.async_events = value;
            }
            fid::KEEP_ALIVE => {
                if u128::from(value) > KEEP_ALIVE_MAX.as_millis() {
                    return Err(Refusal::at(Status::KEEP_ALIVE_INVALID, CDW11));
                }
                features.keep_alive_ms = value;
            }
            fid::TIMESTAMP => {
                let mut bytes = [0; 8];
                bytes[..6].copy_from_slice(&data[..6]);
                features.timestamp = Some((u64::from_le_bytes(bytes), now));
            }
            fid::HOST_BEHAVIOR => features.host_behavior.copy_from_slice(&data[..3]),
            _ => unreachable!("every changeable feature has its own branch"),
        }
        Ok(Reply::default())
    })
}

/// Checks that a dword holds the number of the only endurance group.
fn check_group(cdw11: u32) -> Result<(), Refusal> {
    if cdw11 as u16 == ENDURANCE_GROUP { Ok(()) } else { Err(Refusal::field(CDW11)) }
}

/// The reclaim unit handle that belongs to a placement handle of the namespace. Both have the same
/// number.
fn handle_of(subsystem: &Subsystem, command: &Command, cdw11: u32) -> Result<u16, Refusal> {
    if command.nsid != NSID {
        return Err(Refusal::namespace());
    }
    let handle = cdw11 as u16;
    let handles = subsystem.watch.with_ftl(|ftl| ftl.config().handles);
    if handle < handles { Ok(handle) } else { Err(Refusal::field(CDW11)) }
}

fn get_fdp_events(subsystem: &Subsystem, command: &Command, cdw11: u32) -> Result<Reply, Refusal> {
    let handle = handle_of(subsystem, command, cdw11)?;
    let room = event_room(cdw11);
    let events = subsystem.watch.enabled_events(handle);
    let returned = events.iter().take(room);
    let data: Vec<u8> =
        returned.flat_map(|&(kind, is_enabled)| [kind, is_enabled.into()]).collect();
    let count = (data.len() / EVENT_DESCRIPTOR_SIZE) as u64;
    let mut data = data;
    data.resize(room * EVENT_DESCRIPTOR_SIZE, 0);
    Ok(Reply { result: count, data })
}

fn set_fdp_events(
    subsystem: &Subsystem,
    command: &Command,
    access: &FeatureAccess,
    data: &[u8],
) -> Result<Reply, Refusal> {
    let handle = handle_of(subsystem, command, access.cdw11)?;
    // The command says how many event types its data has. Further bytes of the data are ignored.
    let kinds = &data[..(access.cdw11 >> 16 & 0xff) as usize];
    // The drive has no time limit for a unit, so `UNIT_TIMED_OUT` never happens. But it is a valid
    // type.
    let is_known = |kind: &u8| *kind == UNIT_TIMED_OUT || EventKind::of_code(*kind).is_some();
    if kinds.is_empty() || !kinds.iter().all(is_known) {
        return Err(Refusal::field(CDW11 + 2));
    }
    let is_enabled = access.cdw12 & 1 != 0;
    match subsystem.watch.enable_events(handle, kinds, is_enabled) {
        Ok(()) => Ok(Reply::default()),
        Err(FtlError::NotStored) => Err(Status::INTERNAL_ERROR.into()),
        Err(_) => Err(Refusal::field(CDW11)),
    }
}

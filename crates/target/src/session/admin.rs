//! Commands of the admin queue, and asynchronous events.

use std::time::Instant;

use slimio_nvme::identify::IDENTIFY_SIZE;
use slimio_nvme::log::GetLogPage;
use slimio_nvme::{Command, Status, opcode};

use super::slots::Work;
use super::transfer::DataSize;
use super::{Phase, Session};
use crate::controller::Kind;
use crate::limits::{ASYNC_REQUESTS_MAX, TRANSFER_SIZE_MAX};
use crate::refusal::Refusal;
use crate::reply::Reply;
use crate::{directives, features, identify, logs};

impl Session {
    /// The direction and size of a command's data.
    pub(super) fn data_size(&self, command: &Command) -> Result<DataSize, Refusal> {
        if command.opcode == opcode::FABRICS {
            return self.fabrics_data_size(command);
        }
        match &self.phase {
            Phase::Admin(controller) if controller.is_ready() => self.admin_data_size(command),
            Phase::Io { .. } => self.io_data_size(command),
            _ => Err(Refusal::sequence()),
        }
    }

    /// Whether the connection's controller has ended, or was reset after this I/O queue was
    /// connected. Such a connection is closed without replies. A host repeats commands that got no
    /// reply, but would take a refusal for a failure of the drive.
    pub(super) fn is_orphaned(&self) -> bool {
        match &self.phase {
            Phase::Io { controller, resets, .. } => !controller.has_queue_of(*resets),
            Phase::Admin(controller) => controller.is_over(),
            _ => false,
        }
    }

    /// Carries out a command. `data` is the command's data from the host, if it has any.
    pub(super) fn execute(&mut self, slot: u16, data: &[u8], now: Instant) -> Result<(), Refusal> {
        let command = self.slots.command(slot);
        if command.opcode == opcode::FABRICS {
            return self.fabrics(slot, &command, data, now);
        }
        match &self.phase {
            Phase::Admin(_) => self.admin(slot, &command, data, now),
            Phase::Io { .. } => self.io(slot, &command, data),
            Phase::Request | Phase::Connect | Phase::Over => Err(Refusal::sequence()),
        }
    }

    fn admin(
        &mut self,
        slot: u16,
        command: &Command,
        data: &[u8],
        now: Instant,
    ) -> Result<(), Refusal> {
        let Phase::Admin(controller) = &self.phase else { return Err(Refusal::sequence()) };
        let subsystem = &self.subsystem;
        let reply = match command.opcode {
            opcode::admin::IDENTIFY => Reply::data(identify::run(subsystem, controller, command)?),
            opcode::admin::GET_LOG_PAGE => {
                Reply::data(logs::run(subsystem, controller, self.address, command)?)
            }
            opcode::admin::GET_FEATURES => features::get(subsystem, controller, command, now)?,
            opcode::admin::SET_FEATURES => {
                features::set(subsystem, controller, command, data, now)?
            }
            opcode::admin::DIRECTIVE_RECEIVE => Reply::data(directives::receive(command)?),
            opcode::admin::DIRECTIVE_SEND => return Err(directives::send()),
            opcode::admin::KEEP_ALIVE => Reply::default(),
            opcode::admin::ABORT => {
                // Of all commands, only requests for events wait long enough to be aborted.
                let [sqid, cid] = [command.dword(10) as u16, (command.dword(10) >> 16) as u16];
                let aborted = self.slots.event_with(cid).filter(|_| sqid == 0);
                if let Some(event) = aborted {
                    self.finish(event, 0, Status::ABORT_REQUESTED);
                }
                Reply::result(aborted.is_none().into())
            }
            _ => {
                if self.slots.event_count() >= ASYNC_REQUESTS_MAX {
                    return Err(Refusal::at(Status::ASYNC_EVENT_LIMIT_EXCEEDED, 0));
                }
                self.slots.set_work(slot, Work::Event);
                return Ok(());
            }
        };
        self.answer(slot, command, reply);
        Ok(())
    }

    /// Ends a command with a reply. The reply's data is cut, or filled with zeros, to the length
    /// that the host has asked for.
    pub(super) fn answer(&mut self, slot: u16, command: &Command, mut reply: Reply) {
        let length = command.sgl.length as usize;
        let entry = self.slots.of(slot);
        if entry.is_to_host {
            reply.data.resize(length, 0);
            entry.data = reply.data;
        }
        self.finish(slot, reply.result, Status::SUCCESS);
    }

    /// Answers requests for asynchronous events while there are events.
    pub(super) fn deliver_events(&mut self) {
        let Phase::Admin(controller) = &self.phase else { return };
        let controller = controller.clone();
        while let Some(slot) = self.slots.event() {
            let Some(event) = controller.take_event() else { return };
            self.finish(slot, event, Status::SUCCESS);
        }
    }

    /// The direction and size of an admin command's data.
    fn admin_data_size(&self, command: &Command) -> Result<DataSize, Refusal> {
        let is_io = matches!(&self.phase, Phase::Admin(controller) if controller.kind == Kind::Io);
        let has_directives = is_io && self.subsystem.has_fdp();
        Ok(match command.opcode {
            opcode::admin::IDENTIFY => DataSize::ToHost(IDENTIFY_SIZE),
            opcode::admin::GET_LOG_PAGE => {
                let size = GetLogPage::of(command).size;
                if size > TRANSFER_SIZE_MAX as u64 {
                    // Offset of the field NUMDL, the number of dwords.
                    return Err(Refusal::field(42));
                }
                DataSize::ToHost(size as usize)
            }
            opcode::admin::DIRECTIVE_RECEIVE if has_directives => {
                let size = directives::size(command);
                if size > TRANSFER_SIZE_MAX as u64 {
                    return Err(Refusal::field(directives::NUMD_AT));
                }
                DataSize::ToHost(size as usize)
            }
            opcode::admin::DIRECTIVE_SEND if has_directives => DataSize::None,
            opcode::admin::GET_FEATURES => match features::data_size_to_get(command) {
                0 => DataSize::None,
                _ => DataSize::ToHostUpTo,
            },
            opcode::admin::SET_FEATURES => match features::data_size_to_set(command) {
                0 => DataSize::None,
                bytes => DataSize::FromHostAtLeast(bytes),
            },
            opcode::admin::ABORT
            | opcode::admin::KEEP_ALIVE
            | opcode::admin::ASYNC_EVENT_REQUEST => DataSize::None,
            _ => return Err(Refusal::opcode()),
        })
    }
}

//! The Fabrics commands: Connect, Property Get, Property Set and Disconnect.

use std::time::Instant;

use slimio_nvme::fabrics::{
    CATTR_NO_SQ_FLOW_CONTROL, Configuration, Connect, ConnectData, InvalidParameter, Property,
    PropertyAccess,
};
use slimio_nvme::{Command, Status, opcode};
use slimio_planted::is_planted;

use super::transfer::DataSize;
use super::{Phase, Session};
use crate::controller::{Controller, Kind, READY_TIME_MAX};
use crate::identify::VERSION;
use crate::refusal::Refusal;
use crate::subsystem::ConnectRefusal;

/// Offsets of three fields in the command, for errors: the type of a Fabrics command, the size of a
/// property, and the property's offset.
const TYPE_AT: u16 = 4;
const ATTRIB_AT: u16 = 40;
const OFFSET_AT: u16 = 44;

impl Session {
    /// The direction and size of a Fabrics command's data.
    pub(super) fn fabrics_data_size(&self, command: &Command) -> Result<DataSize, Refusal> {
        let kind = Connect::fabrics_type(command);
        match (kind, &self.phase) {
            (opcode::fabrics::CONNECT, Phase::Connect) => Ok(DataSize::FromHost(ConnectData::SIZE)),
            // A connection has one queue, so Connect must come first, and only once.
            (opcode::fabrics::CONNECT, _) | (_, Phase::Connect) => Err(Refusal::sequence()),
            (opcode::fabrics::PROPERTY_GET | opcode::fabrics::PROPERTY_SET, Phase::Admin(_))
            | (opcode::fabrics::DISCONNECT, Phase::Io { .. }) => Ok(DataSize::None),
            (opcode::fabrics::DISCONNECT, _) => {
                Err(Refusal::at(Status::INVALID_QUEUE_TYPE, TYPE_AT))
            }
            _ => Err(Refusal::at(Status::INVALID_OPCODE, TYPE_AT)),
        }
    }

    /// Carries out a Fabrics command.
    pub(super) fn fabrics(
        &mut self,
        slot: u16,
        command: &Command,
        data: &[u8],
        now: Instant,
    ) -> Result<(), Refusal> {
        match Connect::fabrics_type(command) {
            // The host has sent two Connects, and the first one has been carried out already.
            opcode::fabrics::CONNECT if !matches!(self.phase, Phase::Connect) => {
                return Err(Refusal::sequence());
            }
            opcode::fabrics::CONNECT => {
                let data = ConnectData::decode(data).expect("all data of the command has arrived");
                match self.connect(&Connect::of(command), &data, now) {
                    Ok(result) => self.finish(slot, result, Status::SUCCESS),
                    Err(refusal) => {
                        let status = refusal.status;
                        self.note_error(command, Refusal { status, byte: Refusal::NOWHERE });
                        self.finish(slot, refusal.result, status);
                    }
                }
            }
            opcode::fabrics::PROPERTY_GET => {
                let value = self.property(&PropertyAccess::of(command))?;
                self.finish(slot, value, Status::SUCCESS);
            }
            opcode::fabrics::PROPERTY_SET => {
                self.set_property(&PropertyAccess::of(command))?;
                self.finish(slot, 0, Status::SUCCESS);
            }
            _ => {
                // This is Disconnect, whose reply is the connection's last.
                self.finish(slot, 0, Status::SUCCESS);
                while let Some(slot) = self.done.pop_front() {
                    self.reply(slot);
                }
                self.end();
            }
        }
        Ok(())
    }

    /// Serves Connect. Returns the command's result, which is the controller's number.
    fn connect(
        &mut self,
        connect: &Connect,
        data: &ConnectData,
        now: Instant,
    ) -> Result<u64, ConnectRefusal> {
        if connect.recfmt != 0 {
            return Err(Status::CONNECT_INCOMPATIBLE_FORMAT.dnr().into());
        }
        // Bits 0 and 1 are a priority, which is not used. Bit 2 is read below. Bit 3 says that
        // Disconnect may delete the queue. The other bits are reserved.
        if connect.cattr & 0xf0 != 0 {
            let offset = 46;
            let field = InvalidParameter { offset, is_in_data: false };
            return Err(ConnectRefusal::parameter(field));
        }
        let link = self.link.as_ref();
        let controller = if connect.qid == 0 {
            let controller = self.subsystem.connect_admin(connect, data, link, now)?;
            log::info!("the host {} has controller {}", controller.host, controller.id);
            self.phase = Phase::Admin(controller.clone());
            controller
        } else {
            let (controller, resets) = self.subsystem.connect_io(connect, data, link)?;
            let qid = connect.qid;
            self.phase = Phase::Io { controller: controller.clone(), qid, resets };
            controller
        };
        self.is_without_flow_control = connect.cattr & CATTR_NO_SQ_FLOW_CONTROL != 0;
        self.slots.grow(connect.sqsize + 1);
        // Connect was the queue's first command.
        self.sq_head = 1 % self.slots.depth();
        Ok(controller.id.into())
    }

    fn property(&self, access: &PropertyAccess) -> Result<u64, Refusal> {
        let Phase::Admin(controller) = &self.phase else { return Err(Refusal::sequence()) };
        let property = checked(access)?;
        Ok(match property {
            Property::Cap => Controller::capabilities().bits(),
            Property::Vs => VERSION.into(),
            Property::Cc => controller.configuration().0.into(),
            Property::Csts => controller.status().bits().into(),
            // The longest time until the controller is ready with its media. The property's other
            // field is zero, because the controller is never ready without its media.
            Property::Crto => READY_TIME_MAX.into(),
            Property::Nssr => return Err(Refusal::field(OFFSET_AT)),
        })
    }

    fn set_property(&mut self, access: &PropertyAccess) -> Result<(), Refusal> {
        let Phase::Admin(controller) = &self.phase else { return Err(Refusal::sequence()) };
        if checked(access)? != Property::Cc {
            return Err(Refusal::field(OFFSET_AT));
        }
        let resets = controller.resets();
        let configuration = Configuration(access.value as u32);
        // A host may turn the power off when the shutdown is complete, even if the host has sent no
        // Flush. So the drive is made durable first.
        let is_shutdown = configuration.shn() != 0 && controller.kind == Kind::Io;
        let is_shutdown = is_shutdown && !is_planted("shutdown-not-durable");
        let durable = if is_shutdown { self.subsystem.drive().make_durable() } else { Ok(()) };
        controller.configure(configuration);
        if let Err(error) = durable {
            log::warn!("controller {} can't be shut down: {error}", controller.id);
            controller.stay_in_shutdown();
        }
        if controller.resets() != resets {
            // A reset ends the waiting commands, and the host gets no reply to them. If the host
            // was asked for a command's data, it may still send that data. Such a command fails
            // too, but not before all its data has come.
            self.waiting.clear();
            while let Some(slot) = self.slots.waiting() {
                self.slots.free(slot);
            }
            self.slots.void_received();
        }
        Ok(())
    }
}

/// The property that is read or written. Refuses an access that does not have the property's size.
fn checked(access: &PropertyAccess) -> Result<Property, Refusal> {
    let property = Property::at(access.offset).ok_or(Refusal::field(OFFSET_AT))?;
    if access.is_8_bytes == Some(property.is_8_bytes()) {
        Ok(property)
    } else {
        Err(Refusal::field(ATTRIB_AT))
    }
}

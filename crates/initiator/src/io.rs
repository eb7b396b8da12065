//! An I/O queue, and its commands.

use slimio_nvme::command::{
    DIRECTIVE_DATA_PLACEMENT, DSM_DEALLOCATE, DSM_RANGES_MAX, DsmRange, WriteFlags,
};
use slimio_nvme::fdp::{HandleStatus, HandleStatusHead, IoManagement, PLACEMENTS_MAX};
use slimio_nvme::{Command, opcode};

use crate::{Error, Queue};

/// How durable a write is, and where the drive places its data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placed {
    /// Force unit access: the write ends only when its data is on stable media.
    pub durable: bool,
    /// The placement identifier. `None` means that the write has no placement directive.
    pub placement: Option<u16>,
}

impl Placed {
    fn on(self, command: Command) -> Command {
        let flags = WriteFlags { fua: self.durable, ..WriteFlags::default() };
        let flags = match self.placement {
            Some(id) => {
                WriteFlags { directive: DIRECTIVE_DATA_PLACEMENT, directive_specific: id, ..flags }
            }
            None => flags,
        };
        flags.on(command)
    }
}

/// An I/O queue that sends commands to one namespace.
#[derive(Debug)]
pub struct IoQueue {
    queue: Queue,
    nsid: u32,
    lba_size: usize,
}

impl IoQueue {
    pub(crate) fn new(queue: Queue, nsid: u32, lba_size: usize) -> Self {
        Self { queue, nsid, lba_size }
    }

    /// The queue itself, for callers that want several commands in flight.
    pub fn queue(&mut self) -> &mut Queue {
        &mut self.queue
    }

    /// Size of a block, in bytes.
    pub fn lba_size(&self) -> usize {
        self.lba_size
    }

    /// Makes the command that reads blocks. Submit the command together with a buffer for the
    /// blocks.
    pub fn read_command(&self, lba: u64, lbas: u32) -> Command {
        Command::new(opcode::nvm::READ, 0).nsid(self.nsid).blocks(lba, lbas)
    }

    /// Makes the command that writes blocks. Submit the command together with the blocks.
    pub fn write_command(&self, lba: u64, lbas: u32, placed: Placed) -> Command {
        placed.on(Command::new(opcode::nvm::WRITE, 0).nsid(self.nsid).blocks(lba, lbas))
    }

    /// Makes a Flush command. A flush makes durable every write that ended before the flush began.
    /// The command has no data.
    pub fn flush_command(&self) -> Command {
        Command::new(opcode::nvm::FLUSH, 0).nsid(self.nsid)
    }

    /// Makes the command that deallocates ranges, and the command's data. Each range is a first
    /// block and a number of blocks.
    ///
    /// # Panics
    /// If there are no ranges, or more than [`DSM_RANGES_MAX`].
    pub fn deallocate_command(&self, ranges: &[(u64, u32)]) -> (Command, Vec<u8>) {
        assert!((1..=DSM_RANGES_MAX).contains(&ranges.len()), "a command needs 1 to 256 ranges");
        let data = ranges.iter().flat_map(|&(slba, nlb)| DsmRange { cattr: 0, nlb, slba }.encode());
        let command = Command::new(opcode::nvm::DATASET_MANAGEMENT, 0)
            .nsid(self.nsid)
            .cdw(10, ranges.len() as u32 - 1)
            .cdw(11, DSM_DEALLOCATE);
        (command, data.collect())
    }

    /// Reads blocks.
    ///
    /// # Errors
    /// If the command or the connection fails.
    pub fn read(&mut self, lba: u64, lbas: u32) -> Result<Vec<u8>, Error> {
        let room = vec![0; lbas as usize * self.lba_size];
        Ok(self.queue.run(self.read_command(lba, lbas), room)?.data)
    }

    /// Writes whole blocks.
    ///
    /// # Errors
    /// If the command or the connection fails.
    ///
    /// # Panics
    /// If `data` is empty, or not a whole number of blocks.
    pub fn write(&mut self, lba: u64, data: &[u8], placed: Placed) -> Result<(), Error> {
        let command = self.write_command(lba, self.lbas_of(data), placed);
        self.queue.run(command, data.to_vec()).map(drop)
    }

    /// Compares `data` with the contents of the blocks from `lba` on.
    ///
    /// # Errors
    /// If the command or the connection fails. If the contents differ, the command fails with the
    /// status [`COMPARE_FAILURE`](slimio_nvme::Status::COMPARE_FAILURE).
    ///
    /// # Panics
    /// If `data` is empty, or not a whole number of blocks.
    pub fn compare(&mut self, lba: u64, data: &[u8]) -> Result<(), Error> {
        let command = Command::new(opcode::nvm::COMPARE, 0).nsid(self.nsid);
        self.queue.run(command.blocks(lba, self.lbas_of(data)), data.to_vec()).map(drop)
    }

    /// Writes zeros. If `may_deallocate` is set, the controller may deallocate the blocks instead,
    /// provided that it reads deallocated blocks as zeros.
    ///
    /// # Errors
    /// If the command or the connection fails.
    pub fn write_zeroes(
        &mut self,
        lba: u64,
        lbas: u32,
        may_deallocate: bool,
        placed: Placed,
    ) -> Result<(), Error> {
        let command = Command::new(opcode::nvm::WRITE_ZEROES, 0).nsid(self.nsid);
        let mut command = placed.on(command.blocks(lba, lbas));
        let flags = WriteFlags::of(&command);
        command = WriteFlags { deallocate: may_deallocate, ..flags }.on(command);
        self.queue.run(command, Vec::new()).map(drop)
    }

    /// Flushes. This makes durable every write that has ended already.
    ///
    /// # Errors
    /// If the command or the connection fails.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.queue.run(self.flush_command(), Vec::new()).map(drop)
    }

    /// Deallocates ranges. Each range is a first block and a number of blocks.
    ///
    /// # Errors
    /// If the command or the connection fails.
    ///
    /// # Panics
    /// If there are no ranges, or more than [`DSM_RANGES_MAX`].
    pub fn deallocate(&mut self, ranges: &[(u64, u32)]) -> Result<(), Error> {
        let (command, data) = self.deallocate_command(ranges);
        self.queue.run(command, data).map(drop)
    }

    /// Reads the placement handles of the namespace, with their reclaim units (I/O Management
    /// Receive).
    ///
    /// # Errors
    /// If the command or the connection fails.
    pub fn handle_status(&mut self) -> Result<Vec<HandleStatus>, Error> {
        let size = HandleStatusHead::SIZE + PLACEMENTS_MAX * HandleStatus::SIZE;
        let command = IoManagement::status(0, size as u32).nsid(self.nsid);
        let data = self.queue.run(command, vec![0; size])?.data;
        let count = usize::from(HandleStatusHead::decode(&data)?.nruhsd);
        let descriptors = data[HandleStatusHead::SIZE..].chunks(HandleStatus::SIZE).take(count);
        descriptors.map(|bytes| Ok(HandleStatus::decode(bytes)?)).collect()
    }

    /// Moves the handles of placement identifiers to fresh reclaim units (I/O Management Send).
    ///
    /// # Errors
    /// If the command or the connection fails.
    ///
    /// # Panics
    /// If there are no placement identifiers, or more than [`PLACEMENTS_MAX`].
    pub fn update_handles(&mut self, placements: &[u16]) -> Result<(), Error> {
        let command = IoManagement::update(0, placements.len()).nsid(self.nsid);
        let data = placements.iter().flat_map(|id| id.to_le_bytes()).collect();
        self.queue.run(command, data).map(drop)
    }

    /// Ends the queue with a Disconnect command.
    ///
    /// # Errors
    /// If the command or the connection fails.
    pub fn disconnect(mut self) -> Result<(), Error> {
        self.queue.run(slimio_nvme::fabrics::disconnect(0), Vec::new()).map(drop)
    }

    fn lbas_of(&self, data: &[u8]) -> u32 {
        assert!(
            !data.is_empty() && data.len().is_multiple_of(self.lba_size),
            "{} bytes are no whole number of blocks of {} bytes",
            data.len(),
            self.lba_size
        );
        (data.len() / self.lba_size) as u32
    }
}

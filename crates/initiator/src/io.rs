//! Commands of an I/O queue.

use slimio_nvme::command::{
    DIRECTIVE_DATA_PLACEMENT, DSM_DEALLOCATE, DSM_RANGES_MAX, DsmRange, WriteFlags,
};
use slimio_nvme::fdp::{HandleStatus, HandleStatusHead, IoManagement, PLACEMENTS_MAX};
use slimio_nvme::{Command, opcode};

use crate::{Error, Queue};

/// How a write is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placed {
    /// Force unit access: the write ends when it is on stable media.
    pub durable: bool,
    /// Placement identifier; `None`: no directive.
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

/// An I/O queue, for the namespace that it was opened for.
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

    /// The queue, to have several commands in flight.
    pub fn queue(&mut self) -> &mut Queue {
        &mut self.queue
    }

    /// Size of a block, in bytes.
    pub fn lba_size(&self) -> usize {
        self.lba_size
    }

    /// The command that reads blocks. Its data is the room for them.
    pub fn read_command(&self, lba: u64, lbas: u32) -> Command {
        Command::new(opcode::nvm::READ, 0).nsid(self.nsid).blocks(lba, lbas)
    }

    /// The command that writes blocks, which are its data.
    pub fn write_command(&self, lba: u64, lbas: u32, placed: Placed) -> Command {
        placed.on(Command::new(opcode::nvm::WRITE, 0).nsid(self.nsid).blocks(lba, lbas))
    }

    /// The command that makes durable all writes that have ended. It has no data.
    pub fn flush_command(&self) -> Command {
        Command::new(opcode::nvm::FLUSH, 0).nsid(self.nsid)
    }

    /// The command that deallocates ranges of first block and count of blocks, and its data.
    ///
    /// # Panics
    /// When there are none, or more than [`DSM_RANGES_MAX`].
    pub fn deallocate_command(&self, ranges: &[(u64, u32)]) -> (Command, Vec<u8>) {
        assert!((1..=DSM_RANGES_MAX).contains(&ranges.len()), "a command has 1 to 256 ranges");
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
    /// When the command fails, or the connection.
    pub fn read(&mut self, lba: u64, lbas: u32) -> Result<Vec<u8>, Error> {
        let room = vec![0; lbas as usize * self.lba_size];
        Ok(self.queue.run(self.read_command(lba, lbas), room)?.data)
    }

    /// Writes whole blocks.
    ///
    /// # Errors
    /// When the command fails, or the connection.
    ///
    /// # Panics
    /// When the data is not whole blocks.
    pub fn write(&mut self, lba: u64, data: &[u8], placed: Placed) -> Result<(), Error> {
        let command = self.write_command(lba, self.lbas_of(data), placed);
        self.queue.run(command, data.to_vec()).map(drop)
    }

    /// Compares blocks with what is there.
    ///
    /// # Errors
    /// With the status [`COMPARE_FAILURE`](slimio_nvme::Status::COMPARE_FAILURE) if they differ; when
    /// the command fails, or the connection.
    ///
    /// # Panics
    /// When the data is not whole blocks.
    pub fn compare(&mut self, lba: u64, data: &[u8]) -> Result<(), Error> {
        let command = Command::new(opcode::nvm::COMPARE, 0).nsid(self.nsid);
        self.queue.run(command.blocks(lba, self.lbas_of(data)), data.to_vec()).map(drop)
    }

    /// Writes zeros, or deallocates instead if `may_deallocate` and the controller reads deallocated
    /// blocks as zeros.
    ///
    /// # Errors
    /// When the command fails, or the connection.
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

    /// Makes durable all writes that have ended.
    ///
    /// # Errors
    /// When the command fails, or the connection.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.queue.run(self.flush_command(), Vec::new()).map(drop)
    }

    /// Deallocates ranges of first block and count of blocks.
    ///
    /// # Errors
    /// When the command fails, or the connection.
    ///
    /// # Panics
    /// When there are none, or more than [`DSM_RANGES_MAX`].
    pub fn deallocate(&mut self, ranges: &[(u64, u32)]) -> Result<(), Error> {
        let (command, data) = self.deallocate_command(ranges);
        self.queue.run(command, data).map(drop)
    }

    /// The placements of the namespace and their reclaim units (I/O Management Receive).
    ///
    /// # Errors
    /// When the command fails, or the connection.
    pub fn handle_status(&mut self) -> Result<Vec<HandleStatus>, Error> {
        let size = HandleStatusHead::SIZE + PLACEMENTS_MAX * HandleStatus::SIZE;
        let command = IoManagement::status(0, size as u32).nsid(self.nsid);
        let data = self.queue.run(command, vec![0; size])?.data;
        let count = usize::from(HandleStatusHead::decode(&data)?.nruhsd);
        let descriptors = data[HandleStatusHead::SIZE..].chunks(HandleStatus::SIZE).take(count);
        descriptors.map(|bytes| Ok(HandleStatus::decode(bytes)?)).collect()
    }

    /// Moves the handles of placements to fresh reclaim units (I/O Management Send).
    ///
    /// # Errors
    /// When the command fails, or the connection.
    ///
    /// # Panics
    /// When there are no placements, or more than [`PLACEMENTS_MAX`].
    pub fn update_handles(&mut self, placements: &[u16]) -> Result<(), Error> {
        let command = IoManagement::update(0, placements.len()).nsid(self.nsid);
        let data = placements.iter().flat_map(|id| id.to_le_bytes()).collect();
        self.queue.run(command, data).map(drop)
    }

    /// Ends the queue as NVMe over Fabrics has it.
    ///
    /// # Errors
    /// When the command fails, or the connection.
    pub fn disconnect(mut self) -> Result<(), Error> {
        self.queue.run(slimio_nvme::fabrics::disconnect(0), Vec::new()).map(drop)
    }

    fn lbas_of(&self, data: &[u8]) -> u32 {
        assert!(
            !data.is_empty() && data.len().is_multiple_of(self.lba_size),
            "{} bytes are no whole blocks of {}",
            data.len(),
            self.lba_size
        );
        (data.len() / self.lba_size) as u32
    }
}

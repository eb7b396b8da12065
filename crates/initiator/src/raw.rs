//! A connection on which a test of a target can send anything.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use slimio_nvme::pdu::{COMMON_SIZE, Digests, Head, IcReq, Kind};

use crate::Error;
use crate::protocol::DATA_SIZE_MAX;

/// A connection that sends arbitrary bytes and receives whole PDUs.
#[derive(Debug)]
pub struct RawConnection {
    stream: TcpStream,
    digests: Digests,
    time_max: Duration,
}

impl RawConnection {
    /// Connects, and sends nothing.
    ///
    /// # Errors
    /// If the target can't be reached.
    pub fn open(address: SocketAddr, time_max: Duration) -> Result<Self, Error> {
        let stream = TcpStream::connect_timeout(&address, time_max)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(time_max))?;
        stream.set_write_timeout(Some(time_max))?;
        Ok(Self { stream, digests: Digests::default(), time_max })
    }

    /// Sends an ICReq and receives the ICResp. Later PDUs from the target must have these digests.
    ///
    /// # Errors
    /// If the target answers anything but an ICResp, or does not answer.
    pub fn initialize(&mut self, digests: Digests) -> Result<(), Error> {
        let mut out = Vec::new();
        IcReq { pfv: 0, hpda: 0, dgst: digests.bits(), maxr2t: 0 }.push(&mut out);
        self.send(&out)?;
        let (head, _) = self.receive()?;
        if head.kind != Kind::IcResp {
            return Err(slimio_nvme::pdu::PduError::sequence("something before ICResp").into());
        }
        self.digests = digests;
        Ok(())
    }

    /// Sends bytes.
    ///
    /// # Errors
    /// If the socket fails, or accepts no bytes within the time limit.
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.stream.write_all(bytes).map_err(|error| self.explained(error))
    }

    /// Closes the sending side of the connection.
    ///
    /// # Errors
    /// If the socket fails.
    pub fn finish_sending(&self) -> Result<(), Error> {
        Ok(self.stream.shutdown(std::net::Shutdown::Write)?)
    }

    /// Receives a PDU.
    ///
    /// # Errors
    /// [`Closed`](Error::Closed) if the target closed the connection. Another error if the bytes
    /// are not a PDU, or if no PDU comes within the time limit.
    pub fn receive(&mut self) -> Result<(Head, Vec<u8>), Error> {
        let mut pdu = vec![0; COMMON_SIZE];
        self.read(&mut pdu)?;
        let common = pdu.first_chunk().expect("the common header was read");
        let head = Head::decode(common, self.digests, 4, DATA_SIZE_MAX)?;
        pdu.resize(head.size, 0);
        self.read(&mut pdu[COMMON_SIZE..])?;
        head.check_header(&pdu)?;
        Ok((head, pdu))
    }

    fn read(&mut self, bytes: &mut [u8]) -> Result<(), Error> {
        self.stream.read_exact(bytes).map_err(|error| self.explained(error))
    }

    fn explained(&self, error: std::io::Error) -> Error {
        use std::io::ErrorKind;

        match error.kind() {
            ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => {
                Error::Closed
            }
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Error::TimedOut(self.time_max),
            _ => error.into(),
        }
    }
}

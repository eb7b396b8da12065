//! PDUs, and headers of data, whose fields have fixed places.

use super::push::{common, push_head};
use super::{COMMON_SIZE, Digests, Fes, Kind, MAXH2CDATA_MIN, PduError, TERM_DATA_SIZE_MAX};

layout! {
    /// Initialize Connection Request. Source: TCP transport 1.1, figure 15.
    pub struct IcReq [128] {
        /// Version of the PDUs; zero.
        pfv: u16 = 8,
        /// Alignment of data for the host: in dwords, less one.
        hpda: u8 = 10,
        /// The digests that the host wants.
        dgst: u8 = 11,
        /// Most R2Ts of a command at once, less one.
        maxr2t: u32 = 12,
    }
}

impl IcReq {
    /// Checks its fields, and returns the digests that it asks for.
    ///
    /// # Errors
    /// Which field is wrong.
    pub fn check(&self) -> Result<Digests, PduError> {
        if self.pfv != 0 {
            return Err(PduError { fes: Fes::UnsupportedParameter, fei: 8, what: "PFV" });
        }
        if self.hpda > 31 {
            return Err(PduError::field("HPDA", 10));
        }
        Digests::of_bits(self.dgst).ok_or(PduError::field("DGST", 11))
    }

    /// Appends the PDU.
    pub fn push(&self, out: &mut Vec<u8>) {
        push_head(out, Kind::IcReq, 0, &self.encode(), Digests::default(), 4, 0);
    }
}

layout! {
    /// Initialize Connection Response. Source: TCP transport 1.1, figure 16.
    pub struct IcResp [128] {
        /// Version of the PDUs; zero.
        pfv: u16 = 8,
        /// Alignment of data for the controller: in dwords, less one.
        cpda: u8 = 10,
        /// The digests that the connection has.
        dgst: u8 = 11,
        /// Most bytes of an H2CData PDU.
        maxh2cdata: u32 = 12,
    }
}

impl IcResp {
    /// Checks its fields, and returns the digests that the connection has.
    ///
    /// # Errors
    /// Which field is wrong.
    pub fn check(&self) -> Result<Digests, PduError> {
        if self.pfv != 0 {
            return Err(PduError { fes: Fes::UnsupportedParameter, fei: 8, what: "PFV" });
        }
        if self.cpda > 31 {
            return Err(PduError::field("CPDA", 10));
        }
        if self.maxh2cdata < MAXH2CDATA_MIN || !self.maxh2cdata.is_multiple_of(4) {
            return Err(PduError::field("MAXH2CDATA", 12));
        }
        Digests::of_bits(self.dgst).ok_or(PduError::field("DGST", 11))
    }

    /// Appends the PDU.
    pub fn push(&self, out: &mut Vec<u8>) {
        push_head(out, Kind::IcResp, 0, &self.encode(), Digests::default(), 4, 0);
    }
}

layout! {
    /// Terminate Connection Request. Source: TCP transport 1.1, figures 17 and 18.
    pub struct TermReq [24] {
        /// Fatal error status; [`Fes`] has those that this crate knows.
        fes: u16 = 8,
        /// Fatal error information.
        fei: u32 = 10,
    }
}

impl TermReq {
    /// Appends the PDU: from a host or a controller, with the first bytes of the PDU that was
    /// wrong.
    pub fn push(out: &mut Vec<u8>, kind: Kind, error: PduError, wrong: &[u8]) {
        let wrong = &wrong[..wrong.len().min(TERM_DATA_SIZE_MAX)];
        let term = Self { fes: error.fes as u16, fei: error.fei };
        let mut header = term.encode();
        header[..COMMON_SIZE].copy_from_slice(&common(kind, 0, 0, 24 + wrong.len()));
        out.extend(header);
        out.extend(wrong);
    }
}

layout! {
    /// Header of data in either direction. Source: TCP transport 1.1, figures 21 and 22.
    pub struct DataHead [24] {
        /// The command (CCCID).
        cccid: u16 = 8,
        /// The transfer, as its R2T named it (TTAG); zero to the host.
        ttag: u16 = 10,
        /// Offset in the command's data, in bytes (DATAO).
        datao: u32 = 12,
        /// Size of the data, in bytes (DATAL).
        datal: u32 = 16,
    }
}

layout! {
    /// Ready to Transfer. Source: TCP transport 1.1, figure 23.
    pub struct R2t [24] {
        /// The command (CCCID).
        cccid: u16 = 8,
        /// The controller's name for the transfer (TTAG).
        ttag: u16 = 10,
        /// Offset in the command's data, in bytes (R2TO).
        r2to: u32 = 12,
        /// Bytes to transfer (R2TL).
        r2tl: u32 = 16,
    }
}

impl R2t {
    /// Appends the PDU.
    pub fn push(&self, out: &mut Vec<u8>, digests: Digests) {
        push_head(out, Kind::R2t, 0, &self.encode(), digests, 4, 0);
    }
}

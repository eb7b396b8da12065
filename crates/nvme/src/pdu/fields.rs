//! PDUs whose fields have fixed offsets, and the header of data PDUs.

use super::push::{common, push_head};
use super::{COMMON_SIZE, Digests, Fes, Kind, MAXH2CDATA_MIN, PduError, TERM_DATA_SIZE_MAX};

layout! {
    /// Initialize Connection Request. Source: TCP transport 1.1, figure 15.
    pub struct IcReq [128] {
        /// Version of the PDU format: zero.
        pfv: u16 = 8,
        /// Alignment that the host wants for data sent to it, in dwords, less one.
        hpda: u8 = 10,
        /// The digests that the host wants.
        dgst: u8 = 11,
        /// The most R2Ts that a command may have at the same time, less one.
        maxr2t: u32 = 12,
    }
}

impl IcReq {
    /// Checks the fields, and returns the digests that the host asks for.
    ///
    /// # Errors
    /// If a field is wrong. The error says which field.
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
        /// Version of the PDU format: zero.
        pfv: u16 = 8,
        /// Alignment that the controller wants for data sent to it, in dwords, less one.
        cpda: u8 = 10,
        /// The digests that the connection will have.
        dgst: u8 = 11,
        /// The most bytes of data that an H2CData PDU may have.
        maxh2cdata: u32 = 12,
    }
}

impl IcResp {
    /// Checks the fields, and returns the digests that the connection will have.
    ///
    /// # Errors
    /// If a field is wrong. The error says which field.
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
        /// Fatal error status. [`Fes`] has the values that this crate knows.
        fes: u16 = 8,
        /// Fatal error information.
        fei: u32 = 10,
    }
}

impl TermReq {
    /// Appends the PDU, with the first bytes of the PDU that was wrong. `kind` says whether the
    /// request comes from a host or from a controller.
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
    /// Header of a data PDU, in either direction. Source: TCP transport 1.1, figures 21 and 22.
    pub struct DataHead [24] {
        /// The command (CCCID).
        cccid: u16 = 8,
        /// The transfer tag (TTAG) that the R2T has. Zero in data for the host.
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
        /// The controller's tag for the transfer (TTAG).
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

//! Errors of PDUs.

use std::fmt;

/// Why a connection is terminated (FES, Fatal Error Status). FEI (Fatal Error Information) has
/// more. Source: TCP transport 1.1, figures 17 and 19.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Fes {
    /// A field of the header is wrong; FEI is the field's offset.
    InvalidHeader = 1,
    /// The PDU came at a point where the protocol does not allow it.
    SequenceError = 2,
    /// The header digest is wrong; FEI is the digest that was received.
    HeaderDigestError = 3,
    /// The PDU's data reaches beyond its transfer.
    DataOutOfRange = 4,
    /// The other side exceeded a limit. A controller reports this for too much data, and a host for
    /// too many R2Ts.
    LimitExceeded = 5,
    /// A parameter is not supported; FEI is the parameter's offset.
    UnsupportedParameter = 6,
}

impl Fes {
    /// The error with this number, if there is one.
    pub const fn of(number: u16) -> Option<Self> {
        Some(match number {
            1 => Self::InvalidHeader,
            2 => Self::SequenceError,
            3 => Self::HeaderDigestError,
            4 => Self::DataOutOfRange,
            5 => Self::LimitExceeded,
            6 => Self::UnsupportedParameter,
            _ => return None,
        })
    }
}

/// What is wrong with a PDU. A termination request contains `fes` and `fei`, but not `what`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PduError {
    /// The kind of the error.
    pub fes: Fes,
    /// More about the error: the offset of a field, or a digest.
    pub fei: u32,
    /// What is wrong, for people to read: the specification's name of the field, or a phrase.
    pub what: &'static str,
}

impl PduError {
    /// An error about a wrong field of the header.
    pub const fn field(what: &'static str, offset: u32) -> Self {
        Self { fes: Fes::InvalidHeader, fei: offset, what }
    }

    /// An error about a PDU that came at a point where the protocol does not allow it.
    pub const fn sequence(what: &'static str) -> Self {
        Self { fes: Fes::SequenceError, fei: 0, what }
    }
}

impl fmt::Display for PduError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fes, fei, what } = self;
        match fes {
            Fes::InvalidHeader => write!(f, "wrong field {what}, at byte {fei} of the header"),
            Fes::SequenceError => write!(f, "unexpected PDU: {what}"),
            Fes::HeaderDigestError => write!(f, "wrong header digest {fei:08x}"),
            Fes::DataOutOfRange => write!(f, "data beyond its transfer: {what}"),
            Fes::LimitExceeded => write!(f, "beyond a limit: {what}"),
            Fes::UnsupportedParameter => write!(f, "{what} is not supported"),
        }
    }
}

impl std::error::Error for PduError {}

//! The data set: typed values, expiry, and every data command. No I/O, no clock, no random source.

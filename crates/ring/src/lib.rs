//! A safe io_uring: an operation owns its buffer until its completion is reaped.

//! Decimal numbers as the processor of a PC computes them.

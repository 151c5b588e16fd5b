//! Arm.

pub mod neon;

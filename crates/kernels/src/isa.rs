//! Which instruction sets this machine has: the one place for detection.
//!
//! An instruction set is a value that only detection can make ([`Avx2::detect`] and its siblings): holding one is the proof
//! that its instructions may be executed, so code that takes it by value needs no further check.

use std::fmt;
use std::str::FromStr;
#[cfg(target_arch = "x86_64")]
use std::sync::OnceLock;

/// The instruction sets that kernels exist for, from the slowest to the fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// Plain Rust, on any machine; the oracle of the others.
    Scalar,
    /// AArch64 NEON with dot products of bytes. (Machines without them are left to plain Rust, which NEON runs as well.)
    Neon,
    /// The same, with products of matrices of bytes.
    I8mm,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// x86-64 with AVX-512 F, BW, DQ, VL and VNNI.
    Avx512,
    /// The same, with products of pairs of bf16.
    Avx512Bf16,
    /// The same, with products of matrices of bytes.
    Amx,
}

impl Isa {
    /// Every instruction set of this machine, slowest first; [`Isa::Scalar`] is always there.
    pub fn available() -> Vec<Isa> {
        let mut found = vec![Isa::Scalar];
        #[cfg(target_arch = "aarch64")]
        found.extend(
            Neon::<false>::detect().map(|_| Isa::Neon).into_iter().chain(Neon::<true>::detect().map(|_| Isa::I8mm)),
        );
        #[cfg(target_arch = "x86_64")]
        found.extend(
            [
                Avx2::detect().map(|_| Isa::Avx2),
                Avx512::detect().map(|_| Isa::Avx512),
                Avx512Bf16::detect().map(|_| Isa::Avx512Bf16),
                Amx::detect().map(|_| Isa::Amx),
            ]
            .into_iter()
            .flatten(),
        );
        found
    }

    /// The fastest instruction set of this machine.
    pub fn best() -> Isa {
        Self::available().into_iter().max().unwrap_or(Isa::Scalar)
    }
}

/// Whether this machine finds a stream that is read by few rows sooner than it can be asked for: then asking only
/// takes the places of loads, and one stream is enough.
#[cfg(target_arch = "x86_64")]
pub(crate) fn finds_streams() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let vendor = std::arch::x86_64::__cpuid(0);
        [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes) == [*b"Auth", *b"enti", *b"cAMD"]
    })
}

/// Not known of others.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn finds_streams() -> bool {
    false
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Isa::Scalar => "scalar",
            Isa::Neon => "neon",
            Isa::I8mm => "i8mm",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Avx512Bf16 => "avx512bf16",
            Isa::Amx => "amx",
        })
    }
}

impl FromStr for Isa {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let all = [Isa::Scalar, Isa::Neon, Isa::I8mm, Isa::Avx2, Isa::Avx512, Isa::Avx512Bf16, Isa::Amx];
        let names = all.map(|isa| isa.to_string());
        let found = all.into_iter().zip(&names).find(|(_, known)| *known == name);
        found
            .map(|(isa, _)| isa)
            .ok_or_else(|| format!("unknown instruction set `{name}` (known: {})", names.join(", ")))
    }
}

/// Proof of nothing: scalar code runs everywhere.
#[derive(Clone, Copy, Debug)]
pub struct Scalar;

/// Proof that this machine has AVX2, FMA and F16C.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
pub struct Avx2(());

#[cfg(target_arch = "x86_64")]
impl Avx2 {
    /// The proof without detection.
    ///
    /// # Safety
    /// The machine has AVX2, FMA and F16C.
    pub(crate) unsafe fn assume() -> Self {
        Self(())
    }

    /// The proof, where the machine gives it.
    pub fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c"))
            .then_some(Self(()))
    }
}

/// Proof that this machine has AVX-512 F, BW, DQ, VL and VNNI, and what [`Avx2`] stands for.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
pub struct Avx512(());

#[cfg(target_arch = "x86_64")]
impl Avx512 {
    /// The proof without detection.
    ///
    /// # Safety
    /// The machine has AVX-512 F, BW, DQ, VL and VNNI.
    pub(crate) unsafe fn assume() -> Self {
        Self(())
    }

    /// The proof, where the machine gives it.
    pub fn detect() -> Option<Self> {
        Avx2::detect()?;
        (is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni"))
        .then_some(Self(()))
    }
}

/// Proof that this machine has what [`Avx512`] stands for, and AVX-512 BF16 with [`Dot`](crate::matmul::Dot)'s order and rounding.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
pub struct Avx512Bf16(());

#[cfg(target_arch = "x86_64")]
impl Avx512Bf16 {
    /// The proof without detection.
    ///
    /// # Safety
    /// The machine has AVX-512 F, BW, DQ, VL, VNNI and BF16.
    pub(crate) unsafe fn assume() -> Self {
        Self(())
    }

    /// The proof, where the machine gives it. What `vdpbf16ps` rounds is not the same in all manuals, so that a few products
    /// have to come out right.
    pub fn detect() -> Option<Self> {
        Avx512::detect()?;
        if !is_x86_feature_detected!("avx512bf16") {
            return None;
        }
        crate::x86_64::avx512::bf16::rounds_twice(Self(())).then_some(Self(()))
    }

    /// The proof of what else such a machine has.
    pub fn lanes(self) -> Avx512 {
        Avx512(())
    }
}

/// Proof that this machine has what [`Avx512Bf16`] stands for, and that AMX's products of bytes may be used.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
pub struct Amx(());

#[cfg(target_arch = "x86_64")]
impl Amx {
    /// The proof without detection.
    ///
    /// # Safety
    /// The machine has AVX-512 F, BW, DQ, VL, VNNI and BF16, AMX-TILE and AMX-INT8, and the system permits this process to use them.
    pub(crate) unsafe fn assume() -> Self {
        Self(())
    }

    /// The proof, where the machine gives it and the system lets this process use it: it has to be asked, since it
    /// keeps eight kilobytes more for each thread that uses them.
    pub fn detect() -> Option<Self> {
        static PERMITTED: OnceLock<bool> = OnceLock::new();
        Avx512Bf16::detect()?;
        PERMITTED.get_or_init(|| has_amx() && permits_amx()).then_some(Self(()))
    }

    /// The proof of what else such a machine has.
    pub fn lanes(self) -> Avx512 {
        Avx512(())
    }
}

/// Whether the processor has AMX-TILE and AMX-INT8 and the system keeps their registers.
#[cfg(target_arch = "x86_64")]
fn has_amx() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
    const TILE_AND_INT8: u32 = 1 << 24 | 1 << 25;
    const CONFIG_AND_DATA: u64 = 1 << 17 | 1 << 18;
    #[target_feature(enable = "xsave")]
    fn kept() -> u64 {
        // SAFETY: XCR0 is there wherever XGETBV is.
        unsafe { _xgetbv(0) }
    }
    let leaves = __cpuid(0).eax;
    leaves >= 7
        && __cpuid_count(7, 0).edx & TILE_AND_INT8 == TILE_AND_INT8
        // SAFETY: who has AVX-512 has XGETBV, and the system keeps more than the oldest registers.
        && unsafe { kept() } & CONFIG_AND_DATA == CONFIG_AND_DATA
}

/// Asks Linux for the registers' data.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn permits_amx() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_int = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_ulong = 18;
    // SAFETY: the call reads no memory of this process.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

/// Not known of others.
#[cfg(all(target_arch = "x86_64", not(target_os = "linux")))]
fn permits_amx() -> bool {
    false
}

/// Proof that this machine has NEON and dot products of bytes, and, if `MATRICES`, products of matrices of bytes.
#[cfg(target_arch = "aarch64")]
#[derive(Clone, Copy, Debug)]
pub struct Neon<const MATRICES: bool>(());

#[cfg(target_arch = "aarch64")]
impl<const MATRICES: bool> Neon<MATRICES> {
    /// The proof without detection.
    ///
    /// # Safety
    /// The machine has NEON and dot products, and, if `MATRICES`, products of matrices.
    pub(crate) unsafe fn assume() -> Self {
        Self(())
    }

    /// The proof, where the machine gives it.
    pub fn detect() -> Option<Self> {
        use std::arch::is_aarch64_feature_detected;
        (is_aarch64_feature_detected!("neon")
            && is_aarch64_feature_detected!("dotprod")
            && (!MATRICES || is_aarch64_feature_detected!("i8mm")))
        .then_some(Self(()))
    }
}

//! Files mapped into memory: the one place of this crate that is not safe by itself.

use memmap2::Mmap;
use std::fs::File;
use std::io;

/// Maps the whole of `file`. Whoever cuts the file while it is mapped crashes this process.
pub(crate) fn map(file: &File) -> io::Result<Mmap> {
    // SAFETY: the map is only read. Bytes that change under it are numbers that change, every one of which is valid; that
    // the file is not cut is the promise of those who ask for a map, as its documentation says.
    #[expect(unsafe_code, reason = "the one place for it")]
    unsafe {
        Mmap::map(file)
    }
}

//! Files that are there already, in another place.

use super::io_error;
use crate::Error;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;

/// Bytes that are copied between two looks at whether to go on.
const PIECE: usize = 4 << 20;

/// Gives a file, or the one behind a link, another name. False where the system does not allow it, as between two file systems.
pub fn link_file(from: &Path, to: &Path) -> bool {
    from.canonicalize().and_then(|from| fs::hard_link(from, to)).is_ok()
}

/// Copies a file to where none is. `more` is told the bytes of each piece, and may end it by returning false, which gives false.
///
/// # Errors
/// [`Error::Io`], with the file that could not be read or written.
pub fn copy_file(from: &Path, to: &Path, more: &mut dyn FnMut(u64) -> bool) -> Result<bool, Error> {
    let mut source = File::open(from).map_err(|cause| io_error(from, cause))?;
    let mut file = File::create_new(to).map_err(|cause| io_error(to, cause))?;
    let mut piece = vec![0; PIECE];
    loop {
        let read = source.read(&mut piece).map_err(|cause| io_error(from, cause))?;
        if read == 0 {
            return Ok(true);
        }
        file.write_all(&piece[..read]).map_err(|cause| io_error(to, cause))?;
        if !more(read as u64) {
            return Ok(false);
        }
    }
}

/// Bytes that may still be written to the file system of a directory; `None` where the system does not say.
pub fn free_space(directory: &Path) -> Option<u64> {
    #[cfg(unix)]
    {
        let disk = rustix::fs::statvfs(directory).ok()?;
        Some(disk.f_bavail.saturating_mul(disk.f_frsize))
    }
    #[cfg(not(unix))]
    {
        let _ = directory;
        None
    }
}

//! How many threads are worth having.

#[cfg(any(target_os = "linux", test))]
use std::collections::HashSet;
#[cfg(any(target_os = "linux", test))]
use std::path::Path;

/// Cores that the calling thread may use, by its affinity and by the quota of its control group. Two hardware threads of one core
/// count once: they share the units that multiply, and the memory. Where the system does not tell, hardware threads are counted.
pub fn usable() -> usize {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    physical().map_or(threads, |cores| cores.min(threads))
}

#[cfg(target_os = "linux")]
fn physical() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/thread-self/status").ok()?;
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    cores(Path::new("/sys/devices/system/cpu"), allowed)
}

/// Efficient cores would hold up the others.
#[cfg(target_os = "macos")]
fn physical() -> Option<usize> {
    let (mut count, mut len) = (0i32, size_of::<i32>());
    // SAFETY: the name is a string of C, and no more than `len` bytes are written to `count`.
    let status = unsafe {
        let name = c"hw.perflevel0.physicalcpu".as_ptr();
        libc::sysctlbyname(name, (&raw mut count).cast(), &mut len, std::ptr::null_mut(), 0)
    };
    usize::try_from(count).ok().filter(|&count| status == 0 && count > 0)
}

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
fn physical() -> Option<usize> {
    None
}

/// Cores that have one of the CPUs `allowed`, of those that are online; `None` where `system` does not tell. A core is known by the
/// list of its CPUs: its number need not be unique.
#[cfg(any(target_os = "linux", test))]
fn cores(system: &Path, allowed: &str) -> Option<usize> {
    let read = |name: &str| std::fs::read_to_string(system.join(name)).ok();
    let online = cpus(&read("online")?)?;
    let usable = cpus(allowed)?.into_iter().filter(|cpu| online.contains(cpu));
    let cores = usable.map(|cpu| read(&format!("cpu{cpu}/topology/thread_siblings_list")));
    let cores: HashSet<String> = cores.collect::<Option<_>>()?;
    Some(cores.len()).filter(|&count| count > 0)
}

/// The numbers of a list such as `0-3,8`.
#[cfg(any(target_os = "linux", test))]
fn cpus(list: &str) -> Option<HashSet<u32>> {
    let mut all = HashSet::new();
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        all.extend(first.parse::<u32>().ok()?..=last.parse().ok()?);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::PathBuf;

    /// A directory that says of a machine what Linux would.
    struct Machine(PathBuf);

    impl Machine {
        fn new(name: &str, online: &str, cores: &[&[u32]]) -> Self {
            let root = std::env::temp_dir().join(format!("glimmer-cores-{}-{name}", std::process::id()));
            let machine = Self(root);
            machine.write("online", online);
            for core in cores {
                let siblings: Vec<String> = core.iter().map(u32::to_string).collect();
                let siblings = siblings.join(",");
                core.iter().for_each(|cpu| machine.write(&Self::siblings(*cpu), &siblings));
            }
            machine
        }

        fn siblings(cpu: u32) -> String {
            format!("cpu{cpu}/topology/thread_siblings_list")
        }

        fn write(&self, name: &str, text: &str) {
            let path = self.0.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn siblings_count_once() {
        let machine = Machine::new("siblings", "0-7", &[&[0, 4], &[1, 5], &[2, 6], &[3, 7]]);
        for (allowed, expected) in [("0-7", 4), ("\t0-3", 4), ("0,4", 1), ("1,4-6", 3), ("7", 1), ("0-127", 4)] {
            assert_eq!(cores(&machine.0, allowed), Some(expected), "{allowed}");
        }
    }

    #[test]
    fn a_cpu_that_is_offline_is_not_asked() {
        let machine = Machine::new("offline", "0-1,3", &[&[0, 1], &[3]]);
        assert_eq!(cores(&machine.0, "0-3"), Some(2));
        assert_eq!(cores(&machine.0, "2"), None);
    }

    #[test]
    fn what_is_not_told_is_not_guessed() {
        let machine = Machine::new("silent", "0-3", &[&[0, 1], &[2, 3]]);
        fs::remove_file(machine.0.join(Machine::siblings(3))).unwrap();
        assert_eq!(cores(&machine.0, "0-3"), None);
        assert_eq!(cores(&machine.0, "0-2"), Some(2));
        for nonsense in ["", "x", "0-", "-3", "0;1"] {
            assert_eq!(cores(&machine.0, nonsense), None, "{nonsense}");
        }
        fs::remove_file(machine.0.join("online")).unwrap();
        assert_eq!(cores(&machine.0, "0-2"), None);
        assert!(usable() >= 1);
    }
}

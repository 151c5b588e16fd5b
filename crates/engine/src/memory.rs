//! What memory the machine has, where the system says so.

/// Bytes that can still be had without pushing anything out, swap included; `None` where the system does not say.
pub fn available() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kib = |key: &str| field(&info, key);
    let free = (kib("MemAvailable:")? + kib("SwapFree:").unwrap_or(0)) * 1024;
    Some(cgroup_room().map_or(free, |room| room.min(free)))
}

/// The most memory that this process has held at once, in bytes; `None` where the system does not say.
pub fn peak() -> Option<u64> {
    field(&std::fs::read_to_string("/proc/self/status").ok()?, "VmHWM:").map(|kib| kib * 1024)
}

/// What the control groups of this process leave (version 2), if one of them has a limit. Cached files count as room.
fn cgroup_room() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let root = std::path::Path::new("/sys/fs/cgroup");
    let own = root.join(path.trim_start_matches('/'));
    own.ancestors().take_while(|group| group.starts_with(root)).filter_map(room_of).min()
}

fn room_of(group: &std::path::Path) -> Option<u64> {
    let text = |file: &str| std::fs::read_to_string(group.join(file)).ok();
    let number = |file: &str| text(file)?.trim().parse::<u64>().ok();
    let cached = text("memory.stat").and_then(|stat| field(&stat, "inactive_file")).unwrap_or(0);
    Some(number("memory.max")?.saturating_sub(number("memory.current")?.saturating_sub(cached)))
}

fn field(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with(key))?;
    line.split_ascii_whitespace().nth(1)?.parse().ok()
}

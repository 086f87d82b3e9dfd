//! `cargo xtask cage`: runs a command in a memory cgroup, as a phone would: so much memory, so fast a flash.
//!
//! A shell in between joins the groups and then becomes the command, so that its pid is ours to watch and nothing of the
//! command runs outside. Files named on the command line are dropped from the page cache before: pages that another process
//! read are charged to that one, and would be free memory here.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use crate::Result;

const USAGE: &str =
    "cargo xtask cage --mem 1G [--read-bps 800M] [--evict FILE]… [--report FILE] [--require] -- COMMAND";
/// How often memory is sampled.
const SAMPLE: Duration = Duration::from_millis(10);

#[derive(Default)]
struct Options {
    memory: Option<u64>,
    read_bps: Option<u64>,
    evict: Vec<PathBuf>,
    report: Option<PathBuf>,
    /// Fail instead of skipping where there are no cgroups.
    require: bool,
    command: Vec<String>,
}

pub fn run(args: lexopt::Parser) -> Result {
    let options = parse(args)?;
    let cage = match Cage::build(&options) {
        Ok(cage) => cage,
        Err(why) if options.require => return Err(why),
        Err(why) => {
            eprintln!("cage: skipped: {why}");
            return Ok(());
        }
    };
    evict(&options);
    let (status, measured) = cage.run(&options.command)?;
    let report = measured.json(&options, status);
    eprintln!("cage: {report}");
    if let Some(path) = &options.report {
        fs::write(path, format!("{report}\n"))
            .map_err(|e| format!("cannot write {}: {e}", path.display()))?;
    }
    drop(cage);
    if status.success() { Ok(()) } else { Err(format!("the command ended with {status}")) }
}

fn parse(mut args: lexopt::Parser) -> Result<Options> {
    use lexopt::Arg::{Long, Value};
    let mut options = Options::default();
    let text = |e: lexopt::Error| e.to_string();
    while let Some(arg) = args.next().map_err(text)? {
        match arg {
            Long("mem") => options.memory = Some(size(&args.value().map_err(text)?.to_string_lossy())?),
            Long("read-bps") => {
                options.read_bps = Some(size(&args.value().map_err(text)?.to_string_lossy())?)
            }
            Long("evict") => options.evict.push(args.value().map_err(text)?.into()),
            Long("report") => options.report = Some(args.value().map_err(text)?.into()),
            Long("require") => options.require = true,
            Value(first) => {
                options.command.push(first.to_string_lossy().into_owned());
                let rest = args.raw_args().map_err(text)?;
                options.command.extend(rest.map(|word| word.to_string_lossy().into_owned()));
            }
            other => return Err(format!("{}; usage: {USAGE}", other.unexpected())),
        }
    }
    if options.command.is_empty() || options.memory.is_none() {
        return Err(format!("usage: {USAGE}"));
    }
    Ok(options)
}

/// `1536M`, `1.5G`, `800000000`.
fn size(text: &str) -> Result<u64> {
    let (number, unit) = match text.to_ascii_uppercase().chars().last() {
        Some('K') => (&text[..text.len() - 1], 1u64 << 10),
        Some('M') => (&text[..text.len() - 1], 1 << 20),
        Some('G') => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    match number.parse::<f64>() {
        Ok(n) if n > 0.0 && n * (unit as f64) < 1e18 => Ok((n * unit as f64) as u64),
        _ => Err(format!("{text:?} is no size; examples: 800M, 1.5G")),
    }
}

/// Drops files from the page cache. Best effort: a warm page makes a measurement better than it should be, nothing else.
fn evict(options: &Options) {
    let named = options.command.iter().map(PathBuf::from).filter(|path| path.is_file());
    named.chain(options.evict.iter().cloned()).for_each(|path| drop_cached(&path));
}

/// Drops a file from the page cache, if the system lets us.
pub fn drop_cached(path: &Path) {
    // A page that is not on the disk yet stays.
    let _ = std::fs::File::open(path).and_then(|file| file.sync_all());
    let _ = Command::new("dd")
        .arg(format!("if={}", path.display()))
        .args(["iflag=nocache", "count=0", "status=none"])
        .status();
}

/// The groups of one run; removed with it.
struct Cage {
    memory: PathBuf,
    /// Where reads are limited and counted; the memory group itself in version 2.
    io: Option<PathBuf>,
    unified: bool,
}

impl Cage {
    fn build(options: &Options) -> Result<Cage> {
        if !cfg!(target_os = "linux") {
            return Err("cgroups exist on Linux only".into());
        }
        let name = format!("pannier-cage-{}", std::process::id());
        let limit = options.memory.unwrap_or(u64::MAX);
        let mut cage = match parent("memory") {
            Some(parent) => {
                let memory = make(&parent.join(&name))?;
                Cage { memory, io: None, unified: false }
            }
            None => {
                let parent = unified_parent()?;
                let memory = make(&parent.join(&name))?;
                Cage { io: Some(memory.clone()), memory, unified: true }
            }
        };
        if cage.unified {
            write(&cage.memory.join("memory.max"), &limit.to_string())?;
            // Where there is swap, anonymous memory would leave through it.
            let _ = write(&cage.memory.join("memory.swap.max"), "0");
        } else {
            write(&cage.memory.join("memory.limit_in_bytes"), &limit.to_string())?;
            let _ = write(&cage.memory.join("memory.memsw.limit_in_bytes"), &limit.to_string());
            cage.io = parent("blkio").and_then(|parent| make(&parent.join(&name)).ok());
        }
        if let Some(bps) = options.read_bps {
            let io = cage.io.as_ref().ok_or("reads cannot be limited: there is no io controller")?;
            let named =
                options.command.iter().map(Path::new).chain(options.evict.iter().map(PathBuf::as_path));
            let file = named.rev().find(|path| path.is_file());
            let file = file.ok_or("--read-bps needs a file in the command or --evict")?;
            let disk = disk_of(file)?;
            if cage.unified {
                write(&io.join("io.max"), &format!("{disk} rbps={bps}"))?;
            } else {
                write(&io.join("blkio.throttle.read_bps_device"), &format!("{disk} {bps}"))?;
            }
        }
        Ok(cage)
    }

    fn run(&self, command: &[String]) -> Result<(ExitStatus, Measured)> {
        const JOIN: &str =
            r#"while [ "$1" != -- ]; do echo $$ > "$1" || exit 125; shift; done; shift; exec "$@""#;
        let mut shell = Command::new("sh");
        shell.args(["-c", JOIN, "cage"]).arg(self.memory.join("cgroup.procs"));
        if let Some(io) = self.io.as_ref().filter(|_| !self.unified) {
            shell.arg(io.join("cgroup.procs"));
        }
        let start = Instant::now();
        let mut child =
            shell.arg("--").args(command).spawn().map_err(|e| format!("cannot start a shell: {e}"))?;
        let mut measured = Measured::default();
        let status = loop {
            self.sample(child.id(), &mut measured);
            match child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) => std::thread::sleep(SAMPLE),
                Err(e) => return Err(format!("cannot wait for the command: {e}")),
            }
        };
        measured.seconds = start.elapsed().as_secs_f64();
        let stat = fs::read_to_string(self.memory.join("memory.stat")).unwrap_or_default();
        measured.major_faults = number(&stat, "pgmajfault").unwrap_or(0);
        measured.group_read = self.bytes_read();
        let events = if self.unified { "memory.events" } else { "memory.oom_control" };
        let events = fs::read_to_string(self.memory.join(events)).unwrap_or_default();
        measured.oom_kills = number(&events, "oom_kill").unwrap_or(0);
        Ok((status, measured))
    }

    fn sample(&self, pid: u32, measured: &mut Measured) {
        let stat = fs::read_to_string(self.memory.join("memory.stat")).unwrap_or_default();
        let (anon, file) = if self.unified { ("anon", "file") } else { ("rss", "cache") };
        measured.group_anon = measured.group_anon.max(number(&stat, anon).unwrap_or(0));
        measured.group_cache = measured.group_cache.max(number(&stat, file).unwrap_or(0));
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let kib = |name| number(&status, name).unwrap_or(0) << 10;
        measured.rss_anon = measured.rss_anon.max(kib("RssAnon:"));
        measured.rss = measured.rss.max(kib("VmHWM:"));
        let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
        measured.process_read = measured.process_read.max(number(&io, "read_bytes:").unwrap_or(0));
        measured.samples += 1;
    }

    fn bytes_read(&self) -> Option<u64> {
        let io = self.io.as_ref()?;
        if self.unified {
            let stat = fs::read_to_string(io.join("io.stat")).ok()?;
            Some(stat.split_whitespace().filter_map(|w| w.strip_prefix("rbytes=")?.parse::<u64>().ok()).sum())
        } else {
            let stat = fs::read_to_string(io.join("blkio.throttle.io_service_bytes")).ok()?;
            let reads =
                stat.lines().filter_map(|line| line.split_once(" Read ")?.1.trim().parse::<u64>().ok());
            Some(reads.sum())
        }
    }
}

impl Drop for Cage {
    fn drop(&mut self) {
        // Nobody is left inside when the command has ended, unless it left children: then the groups stay, empty of meaning.
        if let Some(io) = self.io.as_ref().filter(|_| !self.unified) {
            let _ = fs::remove_dir(io);
        }
        let _ = fs::remove_dir(&self.memory);
    }
}

/// What one run took.
#[derive(Default)]
struct Measured {
    seconds: f64,
    samples: u64,
    rss_anon: u64,
    rss: u64,
    group_anon: u64,
    group_cache: u64,
    process_read: u64,
    group_read: Option<u64>,
    major_faults: u64,
    oom_kills: u64,
}

impl Measured {
    fn json(&self, options: &Options, status: ExitStatus) -> String {
        let read = self.group_read.unwrap_or(0).max(self.process_read);
        format!(
            "{{\"limit_bytes\": {}, \"read_bps\": {}, \"seconds\": {:.3}, \"peak_anon_bytes\": {}, \"peak_rss_bytes\": {}, \
             \"peak_group_anon_bytes\": {}, \"peak_page_cache_bytes\": {}, \"major_faults\": {}, \"bytes_read\": {read}, \
             \"oom_kills\": {}, \"samples\": {}, \"exit\": {}}}",
            options.memory.unwrap_or(0),
            options.read_bps.map_or("null".into(), |bps| bps.to_string()),
            self.seconds,
            self.rss_anon,
            self.rss,
            self.group_anon,
            self.group_cache,
            self.major_faults,
            self.oom_kills,
            self.samples,
            status.code().map_or("null".into(), |code| code.to_string()),
        )
    }
}

/// The number behind `name` in a file of `name number` lines.
fn number(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some(name)).then(|| words.next()?.parse().ok()).flatten()
    })
}

/// Our own group under a version 1 controller: what is created below it stays within whatever limits us.
fn parent(controller: &str) -> Option<PathBuf> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = groups.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        controllers.split(',').any(|name| name == controller).then(|| path.trim_start_matches('/').to_owned())
    })?;
    let mount =
        mount_point(|kind, options| kind == "cgroup" && options.split(',').any(|name| name == controller))?;
    // In a container the path may name a group outside of what is mounted.
    let own = mount.join(path);
    Some(if own.is_dir() { own } else { mount })
}

/// A version 2 group whose children get memory limits.
fn unified_parent() -> Result<PathBuf> {
    let none = "there is no memory controller to be found";
    let mount = mount_point(|kind, _| kind == "cgroup2").ok_or(none)?;
    let groups =
        fs::read_to_string("/proc/self/cgroup").map_err(|e| format!("cannot read /proc/self/cgroup: {e}"))?;
    let own =
        groups.lines().find_map(|line| line.strip_prefix("0::/")).map(|path| mount.join(path)).ok_or(none)?;
    // A group with processes in it cannot hand controllers down, unless it is the root: then its parent may.
    for group in own.ancestors().take_while(|group| group.starts_with(&mount)) {
        let _ = write(&group.join("cgroup.subtree_control"), "+memory");
        let _ = write(&group.join("cgroup.subtree_control"), "+io");
        let handed = fs::read_to_string(group.join("cgroup.subtree_control")).unwrap_or_default();
        if handed.split_whitespace().any(|name| name == "memory") {
            return Ok(group.to_owned());
        }
    }
    Err("no cgroup here hands the memory controller down".into())
}

fn mount_point(wanted: impl Fn(&str, &str) -> bool) -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (path, kind, options) = (words.next()?, words.next()?, words.next()?);
        wanted(kind, options).then(|| PathBuf::from(path))
    })
}

/// `major:minor` of the disk (not the partition: limits work on whole disks) that holds a file.
fn disk_of(file: &Path) -> Result<String> {
    #[cfg(target_os = "linux")]
    {
        use std::os::linux::fs::MetadataExt;
        let device = fs::metadata(file).map_err(|e| format!("cannot stat {}: {e}", file.display()))?.st_dev();
        let major = (device >> 8 & 0xfff) | (device >> 32 & !0xfff);
        let minor = (device & 0xff) | (device >> 12 & !0xff);
        let entry = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
        if entry.join("partition").exists() {
            let whole = fs::canonicalize(&entry).ok().and_then(|path| path.parent().map(Path::to_owned));
            if let Some(number) = whole.and_then(|disk| fs::read_to_string(disk.join("dev")).ok()) {
                return Ok(number.trim().to_owned());
            }
        }
        if entry.exists() {
            return Ok(format!("{major}:{minor}"));
        }
    }
    Err(format!("{} is on no block device", file.display()))
}

fn make(group: &Path) -> Result<PathBuf> {
    fs::create_dir(group).map_err(|e| format!("cannot create the cgroup {}: {e}", group.display()))?;
    Ok(group.to_owned())
}

fn write(file: &Path, text: &str) -> Result {
    fs::write(file, text).map_err(|e| format!("cannot write {text} to {}: {e}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(size("1G"), Ok(1 << 30));
        assert_eq!(size("1.5g"), Ok(3 << 29));
        assert_eq!(size("800000"), Ok(800_000));
        assert!(["", "G", "-1G", "1T", "x", "1e30"].iter().all(|text| size(text).is_err()));
    }

    #[test]
    fn numbers_are_found_by_their_whole_name() {
        assert_eq!(number("rss 3\nrss_huge 9\n", "rss"), Some(3));
        assert_eq!(number("RssAnon:\t  12 kB\n", "RssAnon:"), Some(12));
        assert_eq!(number("rss x\n", "rss"), None);
    }

    #[test]
    fn a_process_that_takes_too_much_is_stopped() {
        let options = Options { memory: Some(64 << 20), ..Options::default() };
        let cage = match Cage::build(&options) {
            Ok(cage) => cage,
            Err(why) => return eprintln!("skipped: {why}"),
        };
        let command = ["sh", "-c", "head -c 300000000 /dev/zero | tail | wc -c"].map(String::from);
        let (_, measured) = cage.run(&command).unwrap();
        assert!(measured.oom_kills > 0 && measured.group_anon <= 64 << 20);
    }
}

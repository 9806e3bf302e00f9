//! Reading logs into a case: who wrote a line, when, and what it means.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

use std::collections::BTreeSet;
use std::fmt::Write as _;

use expertrail_cluster::diagnose::event::ZONED;
use expertrail_cluster::diagnose::{Case, Evidence, Input, read, read_texts};
use expertrail_cluster::facts::Facts;
use expertrail_cluster::stack::Question;

fn one(text: &str) -> Case {
    read_texts(&[("run.out", text)])
}

fn set(ranks: &[u32]) -> BTreeSet<u32> {
    ranks.iter().copied().collect()
}

const IMA: &str = "cuda-illegal-memory-access";

/// The same line behind each prefix: rank, node.
#[test]
fn prefixes_alone_and_nested() {
    let body = "RuntimeError: CUDA error: an illegal memory access was encountered";
    let rows: &[(&str, Option<u32>, Option<&str>)] = &[
        ("", None, None),
        ("[rank3]: ", Some(3), None),
        ("[default3]: ", Some(3), None),
        ("[rank12]:[E1129 12:00:00.123456789 ProcessGroupNCCL.cpp:629] ", Some(12), None),
        ("[1,3]<stderr>:", Some(3), None),
        ("[1,3]<stdout>: ", Some(3), None),
        ("[prterun-node-a-12@1,3]<stderr>: ", Some(3), None),
        ("Sun Nov 29 12:00:00 2026[1,7]<stderr>:", Some(7), None),
        ("3: ", Some(3), None),
        (" 12: ", Some(12), None),
        ("[pod/deepep-bench-1-x7k2p/deepep-bench] ", None, Some("deepep-bench-1-x7k2p")),
        ("[pod/w-1/main] [rank9]: ", Some(9), Some("w-1")),
        ("1: [rank9]: ", Some(9), None),
        ("[1,1]<stderr>:[rank9]: ", Some(9), None),
        ("(RayWorker pid=123, ip=192.0.2.3) ", None, Some("192.0.2.3")),
        ("(MegatronPolicyWorker[rank=9] pid=4, ip=192.0.2.3) ", Some(9), Some("192.0.2.3")),
        ("(RayWorker[rank=9]) ", Some(9), None),
        ("(EngineCore_DP4 pid=2344883) ", Some(4), None),
        ("(Worker_DP0_TP1_EP5 pid=4) ", Some(5), None),
        ("[2026-11-29 12:03:11 DP2 TP16 EP16] ", Some(16), None),
        ("[12:03:11 DP2 TP16 EP16] ", Some(16), None),
        ("gpu-a:946:988 [0] ", None, Some("gpu-a")),
        ("[rank2]: gpu-a:946:988 [0] ", Some(2), Some("gpu-a")),
        ("2026-11-29T12:00:00.123456789Z stdout F ", None, None),
        ("2026-11-29T12:00:00.123456789Z stderr F [rank5]: ", Some(5), None),
        ("Nov 29 12:00:00 node-b python[123]: ", None, Some("node-b")),
        ("[node-b:3667226] ", None, Some("node-b")),
        ("[ampere:1188443:0] ", None, Some("ampere")),
        ("[  123.456789] ", None, None),
        ("[Tue Sep  8 17:16:02 2026] ", None, None),
        ("\u{1b}[31m[rank3]:\u{1b}[0m \u{1b}[1m", Some(3), None),
    ];
    for (prefix, rank, node) in rows {
        let case = one(&format!("{prefix}{body}\n"));
        let event = case.first(IMA).unwrap_or_else(|| panic!("{prefix}"));
        assert_eq!(event.rank, *rank, "{prefix}");
        assert_eq!(event.node.as_deref(), *node, "{prefix}");
        assert!(event.text.ends_with(body), "{prefix}: {}", event.text);
        assert_eq!(case.ranks_seen, rank.iter().copied().collect(), "{prefix}");
        assert_eq!(case.count(IMA), 1);
    }
}

/// Seconds since 1970 of 2026-11-29 12:00:00 UTC: 20 786 days (56 years of which 14 leap, 332 days) and twelve hours.
const NOON: f64 = (20_786 * 86_400 + 43_200) as f64;

#[test]
fn timestamps() {
    let body = "an illegal memory access was encountered";
    let day = 43_200.0;
    let rows: &[(&str, f64, u8)] = &[
        ("2026-11-29T12:00:00Z ", NOON, ZONED),
        ("2026-11-29T12:00:00.250Z ", NOON + 0.25, ZONED),
        ("2026-11-29T14:00:00+02:00 ", NOON, ZONED),
        ("2026-11-29T04:00:00-0800 ", NOON, ZONED),
        ("2026-11-29 12:00:00,125 ERROR ", NOON + 0.125, 0),
        ("2026/11/29 12:00:00 ", NOON, 0),
        ("[2026-11-29 12:00:00] ", NOON, 0),
        ("[NeMo W 2026-11-29 12:00:00 nemo_logging:349] ", NOON, 0),
        ("Sun Nov 29 12:00:00 2026[1,0]<stdout>:", NOON, 0),
        ("[Sun Nov 29 12:00:00 2026] ", NOON, 0),
        ("1795953600.5 ", NOON + 0.5, ZONED),
        ("11/29/2026 12:00:00 ", NOON, 0),
        ("I20261129 12:00:00.500000 12 x.cc:1] ", NOON + 0.5, 0),
        ("[12:00:00 TP0] ", day, 1),
        ("12:00:00.5 ", day + 0.5, 1),
        ("[  123.500000] ", 123.5, 2),
        ("time=\"2026-11-29T12:00:00Z\" level=error msg=\"", NOON, ZONED),
        ("libfabric:85:1795953600::core:core:f():1<warn> ", NOON, ZONED),
        ("INFO 2026-11-29 12:00:00,500 [a.py:1] ", NOON + 0.5, 0),
        ("2026-11-29T12:00:00+0000 node-a kernel: ", NOON, ZONED),
        (r#"{"ts": 1795953600.0, "message": "x"#, NOON, ZONED),
        (r#"{"log": "x"#, NOON, ZONED),
    ];
    for (prefix, time, clock) in rows {
        let line = match *prefix {
            json if json.starts_with(r#"{"ts"#) => format!("{json} {body}\"}}\n"),
            json if json.starts_with('{') => {
                format!("{json} {body}\\n\",\"stream\":\"stderr\",\"time\":\"2026-11-29T12:00:00Z\"}}\n")
            }
            _ => format!("{prefix}{body}\n"),
        };
        let case = one(&line);
        let event = case.first(IMA).unwrap_or_else(|| panic!("{line}"));
        assert_eq!((event.time, event.clock), (Some(*time), *clock), "{line}");
    }
    // No time of its own.
    assert_eq!(one(&format!("{body}\n")).first(IMA).unwrap().time, None);
    // Without a year, that of the other dates counts: also in another file.
    let case = read_texts(&[
        ("a.log", "2026-11-29 11:00:00 start\n"),
        (
            "b.log",
            &format!(
                "[11/29 12:00:00] {body}\nE1129 12:00:00.000001 1 a.cc:1] {body}\nNov 29 12:00:00 node-a kernel: {body}\n"
            ),
        ),
    ]);
    let times: Vec<f64> = case.events(IMA).map(|event| event.time.unwrap()).collect();
    assert!(times.iter().all(|time| (time - NOON).abs() < 1e-3), "{times:?}");
    assert_eq!(times.len(), 3);
}

#[test]
fn a_traceback_has_the_time_of_its_first_line() {
    let text = "2026-11-29 12:00:00,000 ERROR worker died\nTraceback (most recent call last):\n  File \"a.py\", line 1\n    x()\n\
                RuntimeError: an illegal memory access was encountered\nan illegal memory access was encountered\n";
    let case = one(text);
    let times: Vec<Option<f64>> = case.events(IMA).map(|event| event.time).collect();
    assert_eq!(times, [Some(NOON), None]);
    assert_eq!(case.first("python-traceback").unwrap().place.line, 2);
}

#[test]
fn order_over_files() {
    let late = "2026-11-29T12:00:05Z [rank1]: an illegal memory access was encountered\n";
    let early = "2026-11-29T12:00:01Z [rank9]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE) ran for 600012 milliseconds\n";
    let case = read_texts(&[("a.log", late), ("b.log", early)]);
    assert_eq!(case.before("nccl-watchdog", IMA), Some(true));
    assert_eq!(case.before(IMA, "nccl-watchdog"), Some(false));
    let watchdog = case.first("nccl-watchdog").unwrap();
    assert_eq!((watchdog.field("op"), watchdog.number("ms")), (Some("ALLREDUCE"), Some(600_012)));
    // Without times, files do not compare.
    let case = read_texts(&[("a.log", &late[21..]), ("b.log", &early[21..])]);
    assert_eq!(case.before("nccl-watchdog", IMA), None);
    // Kernels of two hosts have two clocks.
    let kernel = |at: &str| format!("[{at}] x an illegal memory access was encountered\n");
    let case = read_texts(&[("a.log", &kernel("  100.5")), ("b.log", &kernel("    1.5"))]);
    assert_eq!(case.first(IMA).unwrap().place.file, 0);
}

#[test]
fn lines_survive_what_terminals_and_collectors_do() {
    // A progress bar is one line; each of its pieces is looked at.
    let case = one(
        "x\nstep: 10%|#  |\rstep: 50%|## |\r[rank3]: an illegal memory access was encountered\rstep: 90%|###|\nNVSHMEM v3.4.5\n",
    );
    assert_eq!(case.first(IMA).map(|event| (event.place.line, event.rank)), Some((2, Some(3))));
    let percents: Vec<i64> =
        case.events("progress-bar").filter_map(|event| event.number("percent")).collect();
    assert_eq!(percents, [10, 50, 90]);
    assert_eq!(case.first("nvshmem-banner").unwrap().place.line, 3);
    // CRLF, no last line end.
    let case = one("[rank3]: NVSHMEM v3.4.5\r\nNVSHMEM v3.4.5");
    assert_eq!(case.count("nvshmem-banner"), 2);
    assert_eq!(case.first("nvshmem-banner").unwrap().text, "NVSHMEM v3.4.5");
    // Colours, also within words, and titles of windows.
    let case = one("\u{1b}]0;title\u{7}\u{1b}[1;31mNVSHMEM\u{1b}[0m v3.4.5\n");
    assert_eq!(case.count("nvshmem-banner"), 1);
    // Bytes that are no text.
    let mut bytes =
        b"\xff\xfe\x00 NVSHMEM v3.4.5 \xc3\n[rank1]: \x00\x00an illegal memory access was encountered\n"
            .to_vec();
    bytes.extend_from_slice(&[0x80; 100]);
    let case = bytes_case(bytes);
    assert!(case.has("nvshmem-banner") && case.ranks(IMA) == set(&[1]));
    // The start of a huge line counts, and what follows it.
    let mut huge = b"NVSHMEM v3.4.5 ".to_vec();
    huge.resize(3_000_000, b'x');
    huge.extend_from_slice(b"\nan illegal memory access was encountered\n");
    let case = bytes_case(huge);
    assert_eq!(case.count("nvshmem-banner"), 1);
    assert_eq!(case.first(IMA).unwrap().place.line, 2);
    assert!(case.events.iter().all(|event| event.text.len() <= 600));
}

fn bytes_case(bytes: Vec<u8>) -> Case {
    read(vec![Input::Text { name: "x.log".to_owned(), bytes }], Evidence::default()).unwrap()
}

#[test]
fn merged_lines() {
    let case = one(
        "[rank446]:   Fil[rank390]: Traceback (most recent call last):\n[1,2]<stdout>:NVSHMEM v3.4.5[1,7]<stderr>:an illegal memory access was encountered\n",
    );
    assert_eq!(case.ranks("python-traceback"), set(&[390]));
    assert_eq!(case.ranks("nvshmem-banner"), set(&[2]));
    assert_eq!(case.ranks(IMA), set(&[7]));
    assert_eq!(case.ranks_seen, set(&[2, 7, 390, 446]));
}

#[test]
fn ranks_from_lines_and_names() {
    let ima = "an illegal memory access was encountered";
    let case = one(&format!(
        "[rank 3] {ima}\n[Rank 4] {ima}\nGlobal rank: 5, {ima}\nrank = 11, {ima}\nx, RDMA: 1, nvl: 6, {ima}\n"
    ));
    assert_eq!(case.ranks(IMA), set(&[3, 4, 5, 11, 14]));
    for (name, rank) in [
        ("logs/rank-3.log", Some(3)),
        ("rank_3.log", Some(3)),
        ("global_rank3.out", Some(3)),
        ("r3.log.gz", Some(3)),
        ("rank3/stderr", Some(3)),
        ("run.log", None),
        ("error3.log", None),
        ("pod-0.log", None),
    ] {
        let case = read_texts(&[(name, ima), ("other.log", "x")]);
        assert_eq!(case.first(IMA).unwrap().rank, rank, "{name}");
    }
    // A local rank is a rank of the run where the node is known.
    let case = read_texts(&[
        ("pod-0.log", &format!("LOCAL_WORLD_SIZE=8\n[default2]: {ima}\n")),
        ("pod-1.log", &format!("[default2]: {ima}\n")),
    ]);
    assert_eq!(case.ranks(IMA), set(&[2, 10]));
    assert_eq!(case.nodes(IMA).iter().map(AsRef::as_ref).collect::<Vec<_>>(), ["pod-0", "pod-1"]);
    assert_eq!(case.node_of(10), Some(1));
    let case =
        read_texts(&[("a.log", &format!("[default2]: {ima}\n")), ("b.log", &format!("[default2]: {ima}\n"))]);
    assert_eq!(case.ranks(IMA), set(&[]));
    let case =
        one(&format!("[pod/w-1-x7k2p/main] [default2]: {ima}\n[pod/w-0-abcde/main] nproc_per_node=8\n"));
    assert_eq!(case.ranks(IMA), set(&[10]));
    let case = one(&format!("1: [default2]: {ima}\n0: LOCAL_WORLD_SIZE=4\n"));
    assert_eq!(case.ranks(IMA), set(&[6]));
    // Tasks that start ranks are nodes.
    let case = one(&format!("0: [rank3]: x\n1: [rank9]: {ima}\n1: {ima}\n"));
    assert_eq!(case.ranks(IMA), set(&[9]));
    let case = read_texts(&[("j/attempt_0/3/stderr.log", ima)]);
    assert_eq!(case.ranks(IMA), set(&[3]));
}

#[test]
fn counts_are_whole_and_events_bounded() {
    let mut text = String::new();
    for rank in (0..1000).rev() {
        text.push_str(&format!("[rank{rank}]: an illegal memory access was encountered\n").repeat(3));
    }
    let case = one(&text);
    assert_eq!(case.count(IMA), 3000);
    assert_eq!(case.ranks(IMA).len(), 1000);
    let kept = case.events(IMA).count();
    assert!((512..=64 + 2 * 512).contains(&kept), "{kept}");
    let places: Vec<u64> = case.events(IMA).map(|event| event.place.line).collect();
    assert!(places.windows(2).all(|pair| pair[0] < pair[1]));
    assert_eq!(case.first(IMA).unwrap().rank, Some(999));
    // The earliest of a rank is kept, however late it is read.
    let mut text = "2026-11-29T12:00:09Z [rank1]: an illegal memory access was encountered\n".repeat(100);
    text.push_str("2026-11-29T12:00:01Z [rank1]: an illegal memory access was encountered\n");
    assert_eq!(one(&text).first(IMA).unwrap().place.line, 101);
}

#[test]
fn the_last_of_many_is_kept() {
    let mut text = String::new();
    for iter in 0..1000 {
        writeln!(text, "[rank{}]: iteration {iter}/2000 | loss", iter % 2).unwrap();
    }
    let case = one(&text);
    let mut last: Vec<(Option<u32>, Option<i64>)> =
        case.events("iteration").map(|event| (event.rank, event.number("iter"))).collect();
    let last = last.split_off(last.len() - 2);
    assert_eq!(last, [(Some(0), Some(998)), (Some(1), Some(999))]);
    assert_eq!(case.events.last().unwrap().place.line, 1000);
    assert_eq!(case.count("iteration"), 1000);
}

#[test]
fn what_a_later_file_says_of_the_size_counts() {
    let case = read_texts(&[
        ("w-1.log", "x"),
        ("worker-1.log", "[default2]: NVSHMEM v3.4.5\n"),
        ("z.log", "torchrun --nproc_per_node=8\n"),
    ]);
    assert_eq!(case.ranks("nvshmem-banner"), set(&[10]));
}

#[test]
fn no_file_hides_another() {
    let noisy = "an illegal memory access was encountered\n".repeat(1000);
    let early = "2026-11-29T12:00:01Z an illegal memory access was encountered\n";
    let case = read_texts(&[("a.log", &noisy), ("b.log", &noisy), ("c.log", early)]);
    assert_eq!(case.count(IMA), 2001);
    let files: BTreeSet<u32> = case.events(IMA).map(|event| event.place.file).collect();
    assert_eq!(files, set(&[0, 1, 2]));
}

#[test]
fn lines_that_are_cut_thousands_of_times() {
    let case = one(&format!("{}\nNVSHMEM v3.4.5\n", "x[rank1]: y".repeat(200_000)));
    assert!(case.has("nvshmem-banner") && case.ranks_seen == set(&[1]));
    let nested = format!("{}\n", "{\"log\":".repeat(20_000));
    assert!(one(&nested).events.is_empty());
}

#[test]
fn size_of_the_run() {
    let world = |text: &str| {
        let case = one(text);
        (case.world, case.per_node)
    };
    assert_eq!(world("DeepEP Benchmark: 2 nodes, 16 GPUs\n"), (Some(16), Some(8)));
    assert_eq!(world("initialized, world_size=32\n"), (Some(32), None));
    assert_eq!(
        world("x ncclCommInitRank comm 0x1 rank 3 nranks 8 cudaDev 3\ny rank 3 nranks 32 busId\n"),
        (Some(32), None)
    );
    assert_eq!(world("torchrun --nnodes=4 --nproc_per_node=8 a.py\n"), (Some(32), Some(8)));
    // Of DeepEP's tests, WORLD_SIZE counts nodes: a rank that was seen contradicts it.
    assert_eq!(world("WORLD_SIZE=2\n[rank9]: x\n"), (None, None));
    let case = one("WORLD_SIZE=4\n[rank0]: NVSHMEM v3.4.5\n[rank2]: NVSHMEM v3.4.5\n");
    assert_eq!(case.ranks_without("nvshmem-banner"), Some(set(&[1, 3])));
}

#[test]
fn variables() {
    let text = r#"export NVSHMEM_HCA_LIST="mlx5_1:1,mlx5_2:1"
mpirun -np 16 -x NCCL_DEBUG=INFO -x FI_PROVIDER=efa,UCX_TLS=rc ./all
gpu-a:1:2 [0] NCCL INFO NCCL_IB_HCA set by environment to mlx5_1.
  - name: NVSHMEM_IB_ENABLE_IBGDA
    value: "1"
      NCCL_SOCKET_IFNAME:   eth0
NVSHMEM INFO NVSHMEM_ENABLE_NIC_PE_MAPPING = 0, device 0 setting dev_id = 0
{'NVSHMEM_QP_DEPTH': '1024', 'HOME': '/root'}
HOME=/root
NCCL_DEBUG=WARN
NVSHMEM_REMOTE_TRANSPORT=
"#;
    let case = one(text);
    for (name, value, line) in [
        ("NVSHMEM_HCA_LIST", "mlx5_1:1,mlx5_2:1", 1),
        ("NCCL_DEBUG", "INFO", 2),
        ("FI_PROVIDER", "efa", 2),
        ("UCX_TLS", "rc", 2),
        ("NCCL_IB_HCA", "mlx5_1", 3),
        ("NVSHMEM_IB_ENABLE_IBGDA", "1", 5),
        ("NCCL_SOCKET_IFNAME", "eth0", 6),
        ("NVSHMEM_ENABLE_NIC_PE_MAPPING", "0", 7),
        ("NVSHMEM_QP_DEPTH", "1024", 8),
        ("NVSHMEM_REMOTE_TRANSPORT", "", 11),
    ] {
        assert_eq!(case.variable(name), Some(value), "{name}");
        assert_eq!(case.variables[name].place.line, line, "{name}");
    }
    assert_eq!(case.variable("HOME"), None);
    assert!(!case.environment_printed);
    let dump = "$ env | sort\nCUDA_VERSION=13.0\nFI_PROVIDER=efa\nPATH=/bin\n";
    assert!(one(dump).environment_printed);
    let dump = "FI_PROVIDER=efa\nMASTER_ADDR=a\nMASTER_PORT=1\nNCCL_DEBUG=INFO\nRANK=0\nWORLD_SIZE=2\n";
    assert!(one(dump).environment_printed);
}

#[test]
fn versions() {
    let of = |text: &str, key: &str| one(text).version(key).map(str::to_owned);
    let banner = "NVIDIA: NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n\
                  PyTorch: 2.9.0a0+145a3a7bda.nv25.10, CUDA: 13.0, NCCL: (2, 27, 7)\nDriver: NVIDIA B200\n";
    for (text, key, value) in [
        ("x ... NVSHMEM v3.5.19\n", "nvshmem", "3.5.19"),
        ("nvidia-nvshmem-cu13           3.6.5\n", "nvshmem", "3.6.5"),
        ("nvidia-nvshmem-cu12==3.4.5\n", "nvshmem", "3.4.5"),
        ("Successfully installed deep_ep-1.2.1 nvidia-nvshmem-cu13-3.6.5\n", "nvshmem", "3.6.5"),
        ("nvidia-nvshmem-cu13 3.4.5\nNVSHMEM v3.6.5\n", "nvshmem", "3.6.5"),
        (
            "Found existing installation: nvidia-nvshmem-cu13 3.4.5\n  Uninstalling nvidia-nvshmem-cu13-3.4.5:\nNVSHMEM v3.6.5\n",
            "nvshmem",
            "3.6.5",
        ),
        (
            "NVSHMEM device library version: 3.4.5, NVSHMEM host library version: 3.6.5\n",
            "nvshmem_device",
            "3.4.5",
        ),
        (
            "NVSHMEM device library version: 3.4.5, NVSHMEM host library version: 3.6.5\n",
            "device_host",
            "differ",
        ),
        (
            "$ strings deep_ep_cpp.so | grep NVSHMEM\nNVSHMEM v3.4.5\n$ ls\nNVSHMEM v3.6.5\n",
            "nvshmem",
            "3.6.5",
        ),
        (
            "$ strings deep_ep_cpp.so | grep NVSHMEM\nNVSHMEM v3.4.5\n$ ls\nNVSHMEM v3.6.5\n",
            "nvshmem_device",
            "3.4.5",
        ),
        ("deep_ep                       1.2.1+4214430\n", "deep_ep", "1.2.1+4214430"),
        ("deep_ep                       1.2.1+4214430\n", "commit", "4214430"),
        ("deep_ep                       1.2.1+4214430\n", "564", "no"),
        ("deep-ep==1.1.0\n", "deep_ep", "1.1.0"),
        (
            "deep_ep @ git+https://github.com/deepseek-ai/DeepEP.git@567632dd59810d77b3cc05553df953cc0f779799\n",
            "commit",
            "567632d",
        ),
        (
            "deep_ep @ git+https://github.com/deepseek-ai/DeepEP.git@567632dd59810d77b3cc05553df953cc0f779799\n",
            "564",
            "yes",
        ),
        ("Cloning into 'DeepEP'...\nHEAD is now at 29d31c0 something\n", "commit", "29d31c0"),
        ("git clone --branch hybrid-ep https://github.com/deepseek-ai/DeepEP.git\n", "line", "hybrid-ep"),
        ("NCCL version 2.21.5+cuda12.6\n", "nccl", "2.21.5"),
        ("nvidia-nccl-cu13    2.27.7\n", "nccl", "2.27.7"),
        (banner, "nccl", "2.27.7"),
        (banner, "cuda", "13.0"),
        (banner, "torch", "2.9.0a0+145a3a7bda.nv25.10"),
        (banner, "driver", "580.95.05"),
        (banner, "gpu", "b200"),
        (banner, "sm", "100"),
        ("torch==2.8.0+cu128\n", "torch", "2.8.0+cu128"),
        ("torch                         2.8.0+cu128\n", "cuda", "12.8"),
        (
            "| NVIDIA-SMI 580.95.05   Driver Version: 580.95.05   CUDA Version: 13.0 |\n",
            "driver",
            "580.95.05",
        ),
        (
            "[ 1.5] gdrdrv:gdrdrv_init:loading gdrdrv version 2.5 built for proprietary NVIDIA driver\n",
            "gdrdrv",
            "2.5",
        ),
        ("EFA installer version: 1.43.2\n", "efa_installer", "1.43.2"),
        (
            "\tlibnvshmem_host.so.3 => /opt/nvshmem/lib/libnvshmem_host.so.3 (0x00007f)\n",
            "links_nvshmem",
            "yes",
        ),
        ("NVSHMEM_REMOTE_TRANSPORT=libfabric\n", "transport", "efa"),
        ("NVSHMEM_IB_ENABLE_IBGDA=1\n", "transport", "ibgda"),
        ("FI_PROVIDER=efa\nNVSHMEM_IB_ENABLE_IBGDA=1\n", "transport", "efa"),
        ("\tlink_layer:\t\tEthernet\n", "roce", "yes"),
        ("NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0\n", "roce", "no"),
        ("DISABLE_AGGRESSIVE_PTX_INSTRS=1\n", "aggressive_ptx", "off"),
        ("dispatcher: hybridep\n", "dispatcher", "hybridep"),
        ("rebuilt without #564\n", "564", "no"),
    ] {
        assert_eq!(of(text, key).as_deref(), Some(value), "{key} of {text}");
    }
    for (text, key) in [
        ("export NVSHMEM_VERSION=3.4.5\n", "nvshmem"),
        ("| NVIDIA-SMI 580.95.05   Driver Version: 580.95.05   CUDA Version: 13.0 |\n", "cuda"),
        ("Driver: NVIDIA B200\n", "driver"),
        ("Uninstalling nvidia-nvshmem-cu13-3.4.5:\n", "nvshmem"),
        ("link_layer: Ethernet\nlink_layer: InfiniBand\n", "roce"),
        ("see DeepEP issue 553 in deep_ep/buffer.py line 490\n", "commit"),
        ("NVSHMEM v3.6.5\n", "nvshmem_device"),
    ] {
        assert_eq!(of(text, key), None, "{key} of {text}");
    }
    let case = one("[rank0]: NVSHMEM v3.4.5\n[rank8]: NVSHMEM v3.6.5\n");
    assert_eq!(case.version("nvshmem"), Some("3.4.5"));
    assert!(
        case.notes.iter().any(|note| note.contains("3.4.5 (run.out:1), 3.6.5 (run.out:2)")),
        "{:?}",
        case.notes
    );
    let case = one("export NVSHMEM_VERSION=3.4.5\nNVSHMEM v3.6.5\n");
    assert!(case.notes.iter().any(|note| note.contains("NVSHMEM_VERSION")), "{:?}", case.notes);
}

#[test]
fn the_table_of_versions_is_asked() {
    let text = "deep_ep 1.2.1+4214430\nNVSHMEM v3.6.5\nNVSHMEM_IB_ENABLE_IBGDA=1\n";
    let case = one(text);
    assert_eq!(case.stack_says("nvshmem-rc-layout-mismatch"), Some(true));
    let given = Evidence { stack: Some(Question::parse("564=yes").unwrap()), facts: None };
    let input = vec![Input::Text { name: "a".to_owned(), bytes: text.into() }];
    let case = read(input, given).unwrap();
    assert_eq!(case.version("564"), Some("yes"));
    assert_eq!(case.stack_says("nvshmem-rc-layout-mismatch"), Some(false));
    assert_eq!(
        one("NVSHMEM v3.4.5\ndeep_ep 1.2.1+4214430\n").stack_says("nvshmem-rc-layout-mismatch"),
        Some(false)
    );
}

#[test]
fn facts_are_checked() {
    let facts = Facts::default();
    let input = vec![Input::Text { name: "a".to_owned(), bytes: b"x\n".to_vec() }];
    let case = read(input, Evidence { stack: None, facts: Some(facts) }).unwrap();
    assert!(!case.preflight.is_empty());
    assert_eq!(case.preflight_says("no-such-cause"), Some(false));
}

#[test]
fn success_and_progress() {
    for (line, signal) in [
        ("iteration       30/      30 | consumed samples", "iterations-done"),
        ("Iteration 30/30 done", "iterations-done"),
        ("completed 30 / 30 iterations", "iterations-done"),
        (
            "[testing] Running with BF16, without top-k (async=False, previous=False) ... passed",
            "deepep-test-passed",
        ),
        (
            "[tuning] Best dispatch (BF16): SMs 24, NVL chunk 20, RDMA chunk 32: 25.80 GB/s (RDMA), 84.39 GB/s (NVL)",
            "deepep-tuning-best",
        ),
        ("  Node 0: dispatch=276.9 GB/s, combine=245.1 GB/s, total=260.0 GB/s", "guide-figures"),
        ("# Out of bounds values : 0 OK", "nccl-tests-ok"),
        ("verdict: PASS - 131072 of 131072 rows bit-exact with the oracle", "expertrail-bench-pass"),
        ("[rank 0] Dispatch + combine bandwidth: 96.21 GB/s, avg_t=227.10 us", "deepep-bandwidth"),
        ("launcher 3 exited with code 0", "exit-zero"),
        ("exit code: 0", "exit-zero"),
        ("12 passed, 1 skipped in 3.21s", "tests-passed"),
    ] {
        assert!(one(&format!("{line}\n")).has(signal), "{signal}: {line}");
    }
    for (line, signal) in [
        ("iteration       29/      30 | consumed samples", "iterations-done"),
        ("step 0/0", "iterations-done"),
        (
            "[testing] Running with BF16, without top-k (async=False, previous=False) ...",
            "deepep-test-passed",
        ),
        ("# Out of bounds values : 3 FAILED", "nccl-tests-ok"),
        ("exit code 0x1f", "exit-zero"),
        ("exited with code 01", "exit-zero"),
        ("exit status 0.5", "exit-zero"),
        ("2 failed, 12 passed in 3.21s", "tests-passed"),
    ] {
        assert!(!one(&format!("{line}\n")).has(signal), "{signal}: {line}");
    }
    let case = one("iteration        5/     100 | consumed\n");
    let event = case.first("iteration").unwrap();
    assert_eq!((event.number("iter"), event.number("of")), (Some(5), Some(100)));
}

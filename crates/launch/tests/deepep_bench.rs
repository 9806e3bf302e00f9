//! `assets/deepep_bench.py`, run by real processes over stand-ins for torch and DeepEP: its figures, its refusals, its failures.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

/// The result's schema, for the checker of the crate that owns both; this crate has no other need of that crate.
const JSON_SCHEMA: &str = include_str!("../../bench/schema/expertrail.result.1.schema.json");
#[path = "../../bench/src/schema/conform.rs"]
#[allow(unreachable_pub)]
mod conform;
#[path = "deepep_bench/world.rs"]
mod world;

use expertrail_cluster::judge;
use serde_json::Value;
use world::World;

/// With 64 choices among 4 experts every token goes to every rank, so that bytes can be counted by hand: 12 tokens of 128 BF16.
const EVERYWHERE: &[&str] =
    &["--experts", "4", "--intranode-top-k", "64", "--internode-top-k", "64", "--low-latency-top-k", "4"];
const ROW: f64 = 256.0;

#[test]
fn a_good_run_has_the_guides_lines_and_bytes_counted_by_hand() {
    // Every event says 1 us, so that rates are bytes.
    let run = World::new(2, 2)
        .env("FAKE_MS", "0.001")
        .args(EVERYWHERE)
        .args(&["--benchmarks", "intranode,internode,low-latency"])
        .run();
    assert_eq!(run.codes, [0, 0, 0, 0], "{}", run.outputs.join("\n"));
    let result = run.result();
    assert_eq!(conform::result_violations(&result), Vec::<String>::new());
    assert_eq!(result["verdict"]["status"], "pass");
    let log = &run.outputs[0];

    // Guide, inside a node: 12 tokens to the one other rank of the node, 3072 bytes in 1 us.
    for node in 0..2 {
        assert!(
            log.contains(&format!("  Node {node}: dispatch=3.1 GB/s, combine=3.1 GB/s, total=3.1 GB/s\n")),
            "{log}"
        );
    }
    let intra = &result["parts"][0];
    assert_eq!(intra["settings"]["preset"], "guide-intranode");
    assert_eq!(
        (op(intra, "dispatch", "logical_bytes"), op(intra, "dispatch", "wire_bytes")),
        (24.0 * ROW, 12.0 * ROW)
    );
    assert_eq!(intra["received"]["rows_per_rank"], serde_json::json!([24, 24, 24, 24]));
    // Dispatch on 4 ranks of 24 rows each, combine of 12 tokens each.
    assert_eq!(
        (&intra["verification"]["rows_checked"], &intra["verification"]["rows_total"]),
        (&144.into(), &144.into())
    );

    // Guide, between nodes: 12 tokens to 2 nodes, the own one counted; total is twice the bytes over layout + dispatch + combine.
    assert!(log.contains("  dispatch=6.1 GB/s, combine=6.1 GB/s, total=4.1 GB/s\n"), "{log}");
    assert_eq!(result["settings"]["preset"], "guide-internode");
    assert_eq!(
        (op(&result, "combine", "logical_bytes"), op(&result, "combine", "wire_bytes")),
        (24.0 * ROW, 12.0 * ROW)
    );
    assert_eq!(result["ops"][0]["phases_us"]["layout"], 1.0);
    assert_eq!(result["ops"][0]["sms"], 20);
    let rails = result["rails"].as_array().unwrap();
    assert_eq!(rails.len(), 4);
    // Three timed iterations: dispatch sends 12 rows over the rail; combine 24, since the stand-in sends each rank's row by itself.
    assert!(rails.iter().all(|rail| rail["sent_bytes"] == 3 * 36 * 256), "{rails:?}");

    // Low latency: a copy for each of 4 experts (one a rank): 128 FP8 + one scale of 4 bytes + 16; 256 back.
    let ll = &result["parts"][1];
    assert_eq!(ll["settings"]["mode"], "ll");
    assert_eq!(
        (op(ll, "dispatch", "logical_bytes"), op(ll, "dispatch", "wire_bytes")),
        (48.0 * 148.0, 36.0 * 148.0)
    );
    assert_eq!(
        (op(ll, "combine", "logical_bytes"), op(ll, "combine", "wire_bytes")),
        (48.0 * ROW, 36.0 * ROW)
    );
    assert!(
        log.contains("[rank 3] Dispatch bandwidth: 7.10 GB/s, avg_t=1.00 us | Combine bandwidth: 12.29 GB/s"),
        "{log}"
    );

    // The banner names what is loaded.
    for line in [
        "DeepEP Benchmark: 2 nodes, 4 GPUs\n",
        "GPU: NVIDIA H200\n",
        "NVSHMEM_HCA_LIST mapping: mlx5_(local_rank+1):1 per rank\n",
        "PyTorch: 2.9.0a0+fake, CUDA: 13.0, NCCL: (2, 27, 7)\n",
        "deep_ep 1.2.1+fake\n",
        "DeepEP benchmark complete.\n",
    ] {
        assert!(log.contains(line), "{line}: {log}");
    }
    assert!(!log.contains("Driver:"));
    // Of the library that is mapped, not of a variable that says otherwise.
    assert_eq!(result["versions"]["nvshmem"], "3.4.5");
    assert!(
        run.outputs[3].contains("[rank 3] node 1 ")
            && run.outputs[3].contains("HCA mlx5_2 port 1 ACTIVE 400 Gb/sec"),
        "{}",
        run.outputs[3]
    );
}

fn op(part: &Value, name: &str, bytes: &str) -> f64 {
    let ops = part["ops"].as_array().unwrap();
    let entry = ops.iter().find(|op| op["op"] == name).unwrap();
    assert_eq!(entry[bytes]["mean"].as_f64(), entry[bytes]["max"].as_f64());
    entry[bytes]["mean"].as_f64().unwrap()
}

/// The settings of points 37 and 38, as the benchmark shows them and as DeepEP's buffer is made with them.
#[test]
fn checklist_37_and_38_defaults_are_the_guides() {
    let text = std::fs::read_to_string(world::script()).unwrap();
    for (number, line) in [
        (
            "37",
            r#""intranode": dict(preset="guide-intranode", tokens=65536, hidden=3072, experts=128, top_k=16, sms=40, warmup=10, iters=50)"#,
        ),
        (
            "38",
            r#""internode": dict(preset="guide-internode", tokens=8192, hidden=3072, experts=128, top_k=8, sms=20, warmup=10, iters=50)"#,
        ),
    ] {
        assert!(text.contains(line), "checklist {number}");
    }
    let run =
        World::new(2, 2).args(EVERYWHERE).args(&["--intranode-sms", "40", "--internode-sms", "20"]).run();
    assert_eq!(run.codes, [0; 4], "{}", run.outputs.join("\n"));
    // SMs, NVLink bytes, RDMA bytes, queue pairs, low-latency. 37: max(256 MiB, 20 channels x 2 ranks x 6 x 128 x 2 x 4) and no RDMA;
    // 38: 1 GiB, 512 MiB, 24 queue pairs.
    assert_eq!(run.buffers(), ["40 268435456 0 24 0", "20 1073741824 536870912 24 0"], "checklist 37, 38");
}

#[test]
fn judge_reads_the_log_and_the_result() {
    let run = World::new(2, 2).env("FAKE_MS", "0.001").args(EVERYWHERE).run();
    let log = judge::read("rank-0.log", run.outputs[0].as_bytes());
    let guide = &log[0];
    assert_eq!((guide.settings.nodes, guide.settings.ranks), (Some(2), Some(4)));
    assert_eq!(guide.gpu.as_ref().unwrap().text, "H200");
    assert_eq!(guide.versions["nvshmem"].text, "3.4.5");
    assert_eq!(guide.hca_offset.as_ref().unwrap().0, 1);
    assert_eq!(guide.figures.len(), 9, "three of each node, three between nodes");
    let internode =
        guide.figures.iter().find(|f| f.section == judge::Section::Internode && f.op == "total").unwrap();
    assert_eq!(internode.value, 4.1);
    assert!(guide.ended.is_some() && guide.marks.is_empty(), "{:?}", guide.marks);

    let document = std::fs::read(run.json()).unwrap();
    let runs = judge::read("result.json", &document[..]);
    assert_eq!(runs.len(), 2);
    let sections: Vec<_> = runs.iter().map(|run| run.figures[0].section).collect();
    assert_eq!(sections, [judge::Section::Internode, judge::Section::Intranode]);
    // 3072 bytes in 1 us crossed to others in both.
    assert!(runs.iter().all(|run| (run.figures[0].value - 3.072).abs() < 1e-9));
    assert_eq!(runs[1].settings.top_k, Some(64));
}

/// Checklist 39: the bytes over the time of dispatch and of combine; the total is twice the bytes, between nodes over layout, dispatch and
/// combine, inside a node without layout. GB/s are 1e9 bytes, though the guide's keys end in gbps.
#[test]
fn checklist_39_how_the_three_figures_are_made() {
    // Every event says 2 us: 12 tokens of 256 bytes, inside a node to 1 other rank, between nodes to 2 nodes.
    let run = World::new(2, 2).env("FAKE_MS", "0.002").args(EVERYWHERE).run();
    assert_eq!(run.codes, [0; 4], "{}", run.outputs.concat());
    let (inside, between) = (12.0 * ROW, 24.0 * ROW);
    let gb_s = |bytes: f64, us: f64| bytes / (us * 1e-6) / 1e9;
    let log = &run.outputs[0];
    let line = |dispatch: f64, total: f64| {
        format!("dispatch={dispatch:.1} GB/s, combine={dispatch:.1} GB/s, total={total:.1} GB/s\n")
    };
    // 1.536: rounded to one place it is 1.5, as 2 x 3072 bytes over 4 us are.
    for node in 0..2 {
        let wanted = format!("  Node {node}: {}", line(gb_s(inside, 2.0), gb_s(2.0 * inside, 2.0 + 2.0)));
        assert!(log.contains(&wanted), "{wanted}{log}");
    }
    let wanted = format!("  {}", line(gb_s(between, 2.0), gb_s(2.0 * between, 2.0 + 2.0 + 2.0)));
    assert!(
        log.contains(&wanted) && wanted.contains("dispatch=3.1 GB/s") && wanted.contains("total=2.0"),
        "{wanted}{log}"
    );
    // Whole calls are timed, layout too, on every rank; the guide's line is of one rank.
    let result = run.result();
    assert_eq!(result["ops"][0]["phases_us"]["layout"], 2.0);
    assert_eq!(run.outputs.iter().filter(|said| said.contains("total=")).count(), 1, "rank 0 prints them");
}

/// Checklist 40: an exception that is caught and printed still fails the run, on every rank; and the banner names the GPU as GPU.
#[test]
fn checklist_40_a_caught_exception_fails_and_the_banner_says_gpu() {
    for (benchmarks, mark) in [("intranode", "INTRA ERROR: "), ("internode", "INTER ERROR: ")] {
        let run = World::new(2, 2).env("FAKE_FAULT", "raises:3").args(&["--benchmarks", benchmarks]).run();
        assert_eq!(run.codes, [1; 4], "{benchmarks}: {}", run.outputs.concat());
        assert!(run.outputs[3].contains(&format!("[rank 3] {mark}")), "{}", run.outputs[3]);
        assert_eq!(run.result()["verdict"]["status"], "fail");
        assert!(!run.outputs.concat().contains("DeepEP benchmark complete."));
    }
    let good = World::new(2, 2).run();
    assert_eq!(good.codes, [0; 4], "{}", good.outputs.concat());
    assert!(good.outputs[0].contains("\nGPU: NVIDIA H200\n"), "{}", good.outputs[0]);
    assert!(!good.outputs.concat().contains("Driver:"));
}

/// Checklist 17: a wrong or missing offset shows in no error of DeepEP's, so the benchmark refuses to begin.
#[test]
fn checklist_17_no_rank_begins_without_its_rail() {
    let every: Vec<String> =
        (0..4).map(|rank| format!("[rank {rank}] NVSHMEM_HCA_LIST is not set")).collect();
    refused(
        World::new(2, 2).env("NVSHMEM_HCA_LIST", ""),
        &every.iter().map(String::as_str).collect::<Vec<_>>(),
    );
    // An offset of 2 where 1 is right: the last rank of each node is sent to a device that is not there.
    refused(
        World::new(2, 2)
            .env_of(0, "NVSHMEM_HCA_LIST", "mlx5_2:1")
            .env_of(1, "NVSHMEM_HCA_LIST", "mlx5_3:1")
            .env_of(2, "NVSHMEM_HCA_LIST", "mlx5_2:1")
            .env_of(3, "NVSHMEM_HCA_LIST", "mlx5_3:1"),
        &["[rank 1] NVSHMEM_HCA_LIST names mlx5_3", "[rank 3] NVSHMEM_HCA_LIST names mlx5_3"],
    );
}

/// Every rank exits with 2, one line says why, no GPU was touched, and the result says "not run".
fn refused(world: World, wanted: &[&str]) {
    let run = world.run();
    let all = run.outputs.concat();
    assert!(run.codes.iter().all(|code| *code == 2), "{:?}: {all}", run.codes);
    for line in wanted {
        assert!(all.lines().any(|said| said.contains("refused: ") && said.contains(line)), "{line}: {all}");
    }
    assert_eq!(all.matches("refused: ").count(), wanted.len(), "{all}");
    assert!(!run.touched(), "a GPU was used: {all}");
    if run.json().exists() {
        let result = run.result();
        assert_eq!(conform::result_violations(&result), Vec::<String>::new());
        assert_eq!(result["verdict"]["status"], "not_run");
        assert!(
            result["verdict"]["reasons"][0].as_str().unwrap().contains(wanted[0]),
            "{}",
            result["verdict"]
        );
    }
}

#[test]
fn rails_that_are_wrong_refuse_the_run() {
    refused(World::new(2, 2).env_of(3, "NVSHMEM_HCA_LIST", ""), &["[rank 3] NVSHMEM_HCA_LIST is not set"]);
    refused(
        World::new(2, 2).env_of(1, "NVSHMEM_HCA_LIST", "mlx5_9:1"),
        &["[rank 1] NVSHMEM_HCA_LIST names mlx5_9, which is not under"],
    );
    refused(
        World::new(2, 2).env_of(1, "NVSHMEM_HCA_LIST", "mlx5_1:2"),
        &["names port 2 of mlx5_1, which it does not have"],
    );
    refused(
        World::new(2, 2).port(1, "mlx5_2", "2: INIT"),
        &["[rank 3] port 1 of mlx5_2 is 2: INIT, not ACTIVE"],
    );
    refused(
        World::new(2, 2).env_of(0, "NVSHMEM_ENABLE_NIC_PE_MAPPING", ""),
        &["[rank 0] NVSHMEM_ENABLE_NIC_PE_MAPPING is not set"],
    );
    refused(
        World::new(2, 2).env_of(2, "NVSHMEM_ENABLE_NIC_PE_MAPPING", "0"),
        &["NVSHMEM_ENABLE_NIC_PE_MAPPING is '0'"],
    );
    // All ranks of a pod with the list of the pod: the first device is everybody's.
    refused(
        World::new(2, 2).env("NVSHMEM_HCA_LIST", "mlx5_1:1,mlx5_2:1"),
        &[
            "ranks 0, 1 of node 0 share mlx5_1:1, and the node has 2 rails for 2 ranks",
            "ranks 2, 3 of node 1 share",
        ],
    );
    refused(
        World::new(2, 2).without_rails(1).env("NVSHMEM_REMOTE_TRANSPORT", "libfabric"),
        &["[rank 2] no device", "[rank 3] no device"],
    );
}

#[test]
fn what_is_right_about_rails_is_not_refused() {
    // One rail for two ranks: they must share it. The frontend is slower, and no rail.
    let shared = World::new(2, 2)
        .without_device("mlx5_2")
        .env("NVSHMEM_HCA_LIST", "mlx5_1:1")
        .args(&["--benchmarks", "internode"])
        .run();
    assert_eq!(shared.codes, [0; 4], "{}", shared.outputs.concat());
    // Inside a node no NIC is used.
    let inside = World::new(1, 2).env("NVSHMEM_HCA_LIST", "").args(&["--benchmarks", "intranode"]).run();
    assert_eq!(inside.codes, [0; 2], "{}", inside.outputs.concat());
    // libfabric chooses by itself.
    let efa = World::new(2, 2)
        .env("NVSHMEM_HCA_LIST", "")
        .env("NVSHMEM_ENABLE_NIC_PE_MAPPING", "")
        .env("NVSHMEM_REMOTE_TRANSPORT", "libfabric")
        .run();
    assert_eq!(efa.codes, [0; 4], "{}", efa.outputs.concat());
    assert!(efa.outputs[0].contains("--- Inter-node DeepEP (RDMA over libfabric) ---"));
    // The benchmark itself can give each rank its rail.
    let pins = World::new(2, 2).env("NVSHMEM_HCA_LIST", "").args(&["--pins", "mlx5_1:1,mlx5_2:1"]).run();
    assert_eq!(pins.codes, [0; 4], "{}", pins.outputs.concat());
}

#[test]
fn variables_that_are_missing_or_contradict_refuse_the_run() {
    let every = |world: World, line: &str| {
        let run = world.run();
        assert!(run.codes.iter().all(|code| *code == 2), "{:?} {}", run.codes, run.outputs.concat());
        assert!(run.outputs.iter().all(|said| said.contains(line)), "{line}: {}", run.outputs.concat());
        assert!(!run.touched());
    };
    every(World::new(2, 2).env("WORLD_SIZE", ""), "WORLD_SIZE is not set");
    every(World::new(2, 2).env("RANK", "one"), "RANK is 'one'");
    every(World::new(2, 2).env("MASTER_ADDR", ""), "MASTER_ADDR is not set");
    // DeepEP's own tests want the number of nodes here: 2 nodes of 4 ranks.
    every(
        World::new(2, 4).env("WORLD_SIZE", "2"),
        "WORLD_SIZE=2 with LOCAL_WORLD_SIZE=4: WORLD_SIZE seems to count nodes",
    );
    every(World::new(1, 2).env("WORLD_SIZE", "3"), "WORLD_SIZE seems to count nodes");
    every(World::new(2, 2).env("RANK", "1").env("LOCAL_RANK", "0"), "is RANK the index of a node?");
    every(World::new(2, 2).env("NODE_RANK", "7"), "NODE_RANK=7, but RANK=");
}

#[test]
fn settings_that_cannot_work_refuse_the_run() {
    refused(
        World::new(1, 2).args(&["--benchmarks", "internode"]),
        &["internode needs two nodes or more, there is 1"],
    );
    refused(
        World::new(2, 2).args(&["--experts", "6"]),
        &["internode: 6 experts cannot be divided among 4 ranks: give a multiple with --internode-experts"],
    );
    refused(World::new(2, 2).args(&["--intranode-sms", "7"]), &["intranode: 7 SMs"]);
    refused(
        World::new(2, 2).args_of(3, &["--seed", "9", "--hidden", "64"]),
        &["rank 3 was started with other settings than rank 0"],
    );
    let usage = World::new(1, 1).args(&["--benchmarks", "fast"]).run();
    assert_eq!(usage.codes, [2]);
    assert!(usage.outputs[0].contains("known are intranode, internode, low-latency"));
}

/// Every rank fails, the result conforms and says why; gives the first reason.
fn fails(fault: &str, killed: Option<usize>) -> (world::Ran, String) {
    let run = World::new(2, 2).env("FAKE_FAULT", fault).run();
    for (rank, code) in run.codes.iter().enumerate() {
        let wanted = if killed == Some(rank) { 137 } else { 1 };
        assert_eq!(*code, wanted, "{fault}, rank {rank}: {}", run.outputs.concat());
    }
    assert!(!run.outputs[0].contains("DeepEP benchmark complete."));
    let result = run.result();
    assert_eq!(conform::result_violations(&result), Vec::<String>::new());
    assert_eq!(result["verdict"]["status"], "fail");
    let reason = result["verdict"]["reasons"][0].as_str().unwrap().to_owned();
    (run, reason)
}

#[test]
fn an_exception_in_one_rank_fails_all_and_is_in_the_result() {
    let (run, reason) = fails("raises:3", None);
    assert_eq!(reason, "rank 3: INTRA ERROR: RuntimeError: DeepEP error: timeout (dispatch CPU)");
    assert!(
        run.outputs[3].contains("[rank 3] INTRA ERROR: ") && run.outputs[3].contains("Traceback"),
        "{}",
        run.outputs[3]
    );
    let result = run.result();
    // What did not run is not run, with its reason.
    assert_eq!(result["parts"][0]["verdict"]["status"], "fail");
    assert_eq!(result["ops"], serde_json::json!([]));
    assert_eq!(result["verdict"]["reasons"][1], "internode did not begin: the run had failed before");
    // And judge sees it in the logs, too.
    let marks = &judge::read("rank-3.log", run.outputs[3].as_bytes())[0].marks;
    assert!(
        marks.iter().any(|mark| mark.section == Some(judge::Section::Intranode) && mark.rank == Some(3)),
        "{marks:?}"
    );
}

#[test]
fn a_rank_that_dies_hangs_or_cannot_import_ends_all() {
    let (_, reason) = fails("dies:2", Some(2));
    assert!(reason.starts_with("rank 2: its process ended without a word"), "{reason}");
    let (_, reason) = fails("import:1", None);
    assert!(
        reason.contains(
            "rank 1: INTRA ERROR: ImportError: undefined symbol: nvshmem_selected_device_transport"
        ),
        "{reason}"
    );
    let (_, reason) = fails("one-node:0", None);
    assert!(reason.contains("INTER ERROR: Failed: DeepEP takes these 4 ranks as one node"), "{reason}");
    let hung = World::new(1, 2)
        .env("FAKE_FAULT", "hangs:1")
        .args(&["--benchmarks", "intranode", "--benchmark-s", "4"])
        .run();
    assert_eq!(hung.codes, [1, 1], "{}", hung.outputs.concat());
    assert!(
        hung.outputs[1].contains("no end within 4 s; this rank stood at: warm-up 1"),
        "{}",
        hung.outputs[1]
    );
}

#[test]
fn wrong_data_fails() {
    for (fault, wanted) in [
        (
            "wrong-combine:1",
            "intranode: 1 mismatches; first: rank 1: combine, from token 0: row 11 of these (1 of 12 wrong)",
        ),
        (
            "nan-combine:0",
            "intranode: 1 mismatches; first: rank 0: combine, from token 0: row 0 of these (1 of 12 wrong)",
        ),
        ("loses-row:1", "rows arrived"),
        ("swaps-rows:1", "rank 1: dispatch: rows out of order"),
        ("flips-bit:2", "rank 2: dispatch, from row 0"),
    ] {
        let (run, reason) = fails(fault, None);
        assert!(reason.contains(wanted), "{fault}: {reason}");
        // The next benchmark ran all the same, and the log has a mark of the part.
        assert!(
            run.outputs[0].contains("INTRA ERROR: ") && run.outputs[0].contains("INTER ERROR: "),
            "{}",
            run.outputs[0]
        );
    }
    let low =
        World::new(2, 2).env("FAKE_FAULT", "wrong-combine:2").args(&["--benchmarks", "low-latency"]).run();
    assert_eq!(low.codes, [1; 4], "{}", low.outputs.concat());
    assert!(
        low.result()["verdict"]["reasons"][0]
            .as_str()
            .unwrap()
            .contains("rank 2: low-latency combine: row 0")
    );
    let wrong = &judge::read("log", low.outputs[0].as_bytes())[0].tests.wrong;
    assert!(wrong.iter().any(|said| said.text.contains("rank 2: low-latency combine")), "{wrong:?}");
}

#[test]
fn a_rail_that_stands_still_while_others_send_fails() {
    let (_, reason) = fails("idle-rail:1", None);
    assert!(
        reason.starts_with("internode: rank 1's rail mlx5_2:1 sent nothing, while others did"),
        "{reason}"
    );
    // Counters that no rank moves show nothing: a warning, not a verdict.
    let still = World::new(2, 2).env("FAKE_SYSFS", "/nonexistent").run();
    assert_eq!(still.codes, [0; 4], "{}", still.outputs.concat());
    assert!(
        still.outputs[0].contains("warning: internode: no port counted what it sent"),
        "{}",
        still.outputs[0]
    );
}

#[test]
fn nvshmem_that_is_not_in_the_build_fails_what_needs_it() {
    let without = World::new(2, 2).env("FAKE_NVSHMEM", "").env("NVSHMEM_VERSION", "3.4.5").run();
    assert_eq!(without.codes, [1; 4], "{}", without.outputs.concat());
    assert!(
        without.result()["verdict"]["reasons"][0].as_str().unwrap().contains("no libnvshmem_host is mapped")
    );
    let inside = World::new(1, 2).env("FAKE_NVSHMEM", "").args(&["--benchmarks", "intranode"]).run();
    assert_eq!(inside.codes, [0; 2], "{}", inside.outputs.concat());
}

#[test]
fn a_run_that_is_killed_leaves_a_result_that_says_fail() {
    let run = World::new(1, 2).env("FAKE_FAULT", "dies:0").args(&["--benchmarks", "intranode"]).run();
    assert_eq!(run.codes, [137, 1], "{}", run.outputs.concat());
    let result = run.result();
    assert_eq!(conform::result_violations(&result), Vec::<String>::new());
    assert_eq!(result["verdict"]["status"], "fail");
    assert!(result["verdict"]["reasons"][0].as_str().unwrap().contains("the run stopped before its end"));
}

//! Settings that change what is moved: each run passes, and moves what arithmetic says.

use expertrail::Simd;
use expertrail_bench::schema::{Op, ResultFile, Status};

use crate::common::{Folder, bench, finish, passes, read_result, result_of};

/// Bytes of a call of every rank, logical and wire, checked to be the same for all ranks.
#[track_caller]
fn bytes(result: &ResultFile, op: Op) -> (f64, f64) {
    let op = result.ops_named(op).next().expect("measured");
    assert_eq!((op.logical_bytes.mean, op.wire_bytes.mean), (op.logical_bytes.max, op.wire_bytes.max));
    (op.logical_bytes.mean, op.wire_bytes.mean)
}

#[test]
fn one_group_per_node() {
    let shape = ["--ranks", "4", "--nodes", "2", "--scope", "node", "--experts", "2", "--top-k", "2"];
    let result = passes(&[&shape[..], &["--tokens", "40", "--hidden", "64"]].concat());
    // Each node's 2 ranks hold both experts: a token goes to both of them, and to no other node.
    assert_eq!(result.received.rows_per_rank, [2 * 40; 4]);
    assert_eq!(result.received.tokens_per_expert, [4 * 40; 2]);
    assert_eq!(bytes(&result, Op::Dispatch), (40.0 * 2.0 * 128.0, 40.0 * 128.0));
    let t = &result.topology;
    assert_eq!((t.ranks, t.nodes, t.ranks_per_node, t.scope.to_string()), (4, 2, 2, "node".to_owned()));
    assert_eq!(result.verification.rows_total, 3 * 4 * (2 * 2 * 40 + 40));
}

#[test]
fn one_group_over_two_nodes() {
    let shape = ["--ranks", "4", "--nodes", "2", "--experts", "4", "--top-k", "4"];
    let result = passes(&[&shape[..], &["--tokens", "40", "--hidden", "64"]].concat());
    assert_eq!(result.received.rows_per_rank, [4 * 40; 4]);
    // To the rank beside, across to the other node, and from its rail to the rank beside that: 3 rows a token.
    assert_eq!(bytes(&result, Op::Dispatch), (40.0 * 4.0 * 128.0, 40.0 * 3.0 * 128.0));
    assert_eq!(bytes(&result, Op::Combine), (40.0 * 4.0 * 128.0, 40.0 * 3.0 * 128.0));
    assert_eq!((result.topology.nodes, result.topology.scope.to_string()), (2, "world".to_owned()));
}

#[test]
fn two_nodes_of_uneven_traffic() {
    // One choice: a token crosses at most once, to its expert's rank or, if that is no rail, by one hop more.
    let shape = ["--ranks", "4", "--ranks-per-node", "2", "--experts", "4", "--top-k", "1"];
    let result = passes(&[&shape[..], &["--tokens", "400", "--hidden", "64"]].concat());
    let op = result.ops_named(Op::Dispatch).next().expect("measured");
    assert_eq!(op.logical_bytes.mean, 400.0 * 128.0);
    // A quarter stays, a quarter goes beside, a quarter across, a quarter across and then beside: 1 hop a token
    // on average, with a spread of 0.7 hops / sqrt(400) a rank and set.
    let hops = op.wire_bytes.mean / 128.0 / 400.0;
    assert!((0.9..1.1).contains(&hops), "{hops}");
    assert_eq!(result.received.rows_per_rank.iter().sum::<u64>(), 4 * 400);
    assert_eq!(result.received.rows_per_rank, result.received.tokens_per_expert);
}

#[test]
fn fp8_rows_are_half_as_wide_and_carry_scales() {
    let shape = ["--ranks", "2", "--experts", "2", "--top-k", "2", "--tokens", "40", "--hidden", "256"];
    let result = passes(&[&shape[..], &["--dtype", "fp8"]].concat());
    // 256 codes and 2 scales of 4 bytes; combine brings BF16 back.
    assert_eq!(bytes(&result, Op::Dispatch), (40.0 * 2.0 * 264.0, 40.0 * 264.0));
    assert_eq!(bytes(&result, Op::Combine), (40.0 * 2.0 * 512.0, 40.0 * 512.0));
    let dtype = |op| result.ops_named(op).next().expect("measured").dtype.clone();
    assert_eq!((dtype(Op::Dispatch), dtype(Op::Combine)), ("fp8".to_owned(), "bf16".to_owned()));
}

#[test]
fn expert_major_rows_are_padded() {
    let shape = ["--ranks", "2", "--experts", "4", "--top-k", "4", "--tokens", "21", "--hidden", "64"];
    let result = passes(&[&shape[..], &["--layout", "expert-major", "--alignment", "16"]].concat());
    // Every expert gets all 42 tokens: 48 rows, 2 experts a rank. The row sent twice to a rank crosses once.
    assert_eq!(result.received.rows_per_rank, [2 * 48; 2]);
    assert_eq!(result.received.tokens_per_expert, [42; 4]);
    assert_eq!(bytes(&result, Op::Dispatch), (21.0 * 2.0 * 128.0, 21.0 * 128.0));
    assert_eq!((&*result.settings.layout, result.settings.alignment), ("expert_major", 16));
    assert_eq!(result.verification.rows_total, 3 * (2 * 2 * 96 + 2 * 21));
}

#[test]
fn private_expert_rows_are_staged() {
    let shape = ["--ranks", "3", "--experts", "7", "--top-k", "3", "--tokens", "40", "--hidden", "136"];
    let staged = passes(&[&shape[..], &["--combine-input", "private"]].concat());
    assert_eq!(staged.backend.details["combine_input"], "private");

    assert_eq!(staged.received.tokens_per_expert.iter().sum::<u64>(), 3 * 40 * 3);
}

#[test]
fn skew_heaps_tokens_on_few_experts() {
    let shape = ["--ranks", "2", "--experts", "16", "--top-k", "2", "--tokens", "400", "--hidden", "64"];
    let skewed = passes(&[&shape[..], &["--routing-skew", "1.2"]].concat());
    let counts = &skewed.received.tokens_per_expert;
    assert_eq!(counts.iter().sum::<u64>(), 2 * 400 * 2);
    // Evenly it would be 100 each (1600 choices of 16 experts, standard deviation 9.4). With exponent 1.2 the hot
    // expert is the first choice of 1 / sum(i^-1.2) = 37 % of 800 tokens, and the second choice of more.
    let (most, least) = (counts.iter().max(), counts.iter().min());
    assert!(most > Some(&(296 - 60)) && least < Some(&60), "{counts:?}");
    assert_eq!((&*skewed.settings.routing, skewed.settings.routing_skew), ("zipf", 1.2));
}

#[test]
fn drawing_with_replacement_counts_every_choice() {
    let shape = ["--ranks", "2", "--experts", "8", "--top-k", "8", "--tokens", "50", "--hidden", "64"];
    let result = passes(&[&shape[..], &["--with-replacement", "true"]].concat());
    // Duplicates are allowed, counted, and moved once a rank; hardly a token of 8 draws misses a rank (1 in 128).
    assert_eq!(result.received.tokens_per_expert.iter().sum::<u64>(), 2 * 50 * 8);
    assert!(
        result.received.rows_per_rank.iter().all(|&rows| (85..=100).contains(&rows)),
        "{:?}",
        result.received
    );
}

#[test]
fn no_tokens_at_all() {
    let result = passes(&["--ranks", "3", "--tokens", "0", "--hidden", "64"]);
    assert_eq!(result.received.rows_per_rank, [0; 3]);
    assert_eq!(result.received.tokens_per_expert, [0; 64]);
    assert_eq!((result.verification.rows_total, result.verification.mismatches), (0, 0));
    assert_eq!(bytes(&result, Op::Dispatch), (0.0, 0.0));
}

#[test]
fn more_ranks_than_experts() {
    let shape = ["--ranks", "5", "--experts", "3", "--top-k", "3", "--tokens", "20", "--hidden", "64"];
    let result = passes(&shape);
    assert_eq!(result.received.rows_per_rank, [100, 100, 100, 0, 0]);
    assert_eq!(result.received.tokens_per_expert, [100; 3]);
    let wire: Vec<f64> = result
        .ops_named(Op::Dispatch)
        .next()
        .expect("measured")
        .per_rank
        .iter()
        .map(|r| r.wire_bytes)
        .collect();
    // Ranks that hold an expert keep a third; the others send everything.
    assert_eq!(wire, [2.0, 2.0, 2.0, 3.0, 3.0].map(|rows| rows * 20.0 * 128.0));
}

#[test]
fn one_rank_alone() {
    let shape = ["--ranks", "1", "--experts", "4", "--top-k", "2", "--tokens", "20", "--hidden", "64"];
    let result = passes(&shape);
    assert_eq!(bytes(&result, Op::Dispatch), (20.0 * 128.0, 0.0));
    assert_eq!(result.received.rows_per_rank, [20]);
    assert_eq!(result.received.tokens_per_expert.iter().sum::<u64>(), 40);
}

const FAN_OUT: [&str; 10] =
    ["--ranks", "2", "--experts", "2", "--top-k", "2", "--tokens", "32", "--hidden", "64"];

#[test]
fn not_looking_is_not_passing() {
    let folder = Folder::new();
    let mut command = bench(&FAN_OUT);
    command.args(["--iters", "2", "--verify", "off", "--json"]).arg(folder.path("r.json"));
    let run = finish(command).exits(3);
    assert!(run.out.contains("verdict: NOT VERIFIED"), "{}", run.out);
    assert!(!run.out.contains("PASS"), "{}", run.out);
    let result = read_result(&folder.path("r.json"));
    assert_eq!((result.verdict.status, result.verification.rows_checked), (Status::NotVerified, 0));
    assert_eq!(result.verification.rows_total, 2 * (2 * 2 * 64 + 2 * 32));
}

#[test]
fn a_sample_is_one_row_in_sixteen() {
    let result = passes(&[&FAN_OUT[..], &["--verify", "sample"]].concat());
    let v = &result.verification;
    // 64 rows a dispatch, 32 a combine: whole sixteens.
    assert_eq!((v.rows_checked, v.rows_total), (3 * 2 * (4 + 4 + 2), 3 * 2 * (64 + 64 + 32)));
    assert!(result.verdict.reasons.concat().contains("60 of 960"), "{:?}", result.verdict);
}

#[test]
fn a_seed_decides_the_routing() {
    let rows = |seed: &str| {
        let shape = ["--ranks", "4", "--experts", "16", "--top-k", "2", "--tokens", "100", "--hidden", "8"];
        passes(&[&shape[..], &["--seed", seed]].concat()).received
    };
    let first = rows("7");
    assert_eq!(first, rows("7"));
    assert_ne!(first.tokens_per_expert, rows("8").tokens_per_expert);
}

#[test]
fn every_instruction_set_moves_the_same() {
    let shape = ["--ranks", "2", "--experts", "6", "--top-k", "3", "--tokens", "50", "--hidden", "136"];
    let received: Vec<_> = Simd::available()
        .map(|simd| {
            let folder = Folder::new();
            let result = result_of(&shape, &folder, 0, |command| {
                command.env("EXPERTRAIL_SIMD", simd.to_string());
            });
            assert_eq!(result.backend.simd, Some(simd.to_string()));
            result.received
        })
        .collect();
    assert!(received.windows(2).all(|two| two[0] == two[1]), "{received:?}");
}

#[test]
fn an_unknown_instruction_set_is_refused() {
    let mut command = bench(&FAN_OUT);
    command.env("EXPERTRAIL_SIMD", "sse9");
    let run = finish(command).exits(2).says(&["EXPERTRAIL_SIMD: `sse9`", "instruction set", "portable"]);
    assert_eq!(run.out, "");
}

#[test]
fn two_runs_side_by_side() {
    let runs = [1, 2].map(|_| {
        let shape = ["--ranks", "3", "--tokens", "64", "--hidden", "64", "--iters", "5"];
        std::thread::spawn(move || finish(bench(&shape)))
    });
    for run in runs {
        let run = run.join().expect("no panic").exits(0);
        assert!(run.out.contains("verdict: PASS"), "{}", run.out);
    }
}

//! tmp
use std::time::Instant;
use expertrail_bench::workload::*;
use expertrail_core::Bf16;
fn main(){
  let h=7168; let rows=40000u64; let mut buf=vec![Bf16(0);h];
  for _ in 0..3 { let t=Instant::now(); for i in 0..rows { fill_row(RowKey{seed:1,tensor:Tensor::Tokens,rank:0,index:i},&mut buf); std::hint::black_box(&mut buf);} println!("fill {:.2} GB/s", rows as f64*h as f64*2.0/t.elapsed().as_secs_f64()/1e9);
   let t=Instant::now(); for _ in 0..rows { assert!(first_mismatch(RowKey{seed:1,tensor:Tensor::Tokens,rank:0,index:rows-1},std::hint::black_box(&buf)).is_none());} println!("cmp {:.2} GB/s", rows as f64*h as f64*2.0/t.elapsed().as_secs_f64()/1e9);
   let mut q=vec![0u8;h]; let mut s=vec![0f32;56];
   let t=Instant::now(); for i in 0..rows { fill_row_fp8(RowKey{seed:1,tensor:Tensor::Tokens,rank:0,index:i},&mut q,&mut s); std::hint::black_box(&mut q);} println!("fp8 {:.2} GB/s", rows as f64*h as f64/t.elapsed().as_secs_f64()/1e9);
   let t=Instant::now(); for _ in 0..rows { assert!(first_mismatch_fp8(RowKey{seed:1,tensor:Tensor::Tokens,rank:0,index:rows-1},&q,&s).is_none());std::hint::black_box(&mut q);} println!("cmp8 {:.2} GB/s", rows as f64*h as f64/t.elapsed().as_secs_f64()/1e9);
  }
  for spec in [RoutingSpec::uniform(16,128,1), RoutingSpec{with_replacement:true,..RoutingSpec::uniform(16,128,1)}, RoutingSpec{skew:1.2,..RoutingSpec::uniform(16,128,1)}, RoutingSpec{skew:4.0,..RoutingSpec::uniform(16,128,1)}] {
   let t=Instant::now(); let r=spec.routing(65536,0,0).unwrap(); let d=t.elapsed(); let w=Instant::now(); weights(&r,1,(0,0),true); println!("{:?} routing {:?} weights {:?}", spec.skew, d, w.elapsed()); }
}

//! libfabric's structures and tables of calls, as far as they are used: only the parts that every version since 1.11 has at
//! the same place.
//!
//! Enumerations are plain integers, because a newer library may return a value that no header here has. Entries of
//! tables are optional: a provider may leave any of them out, and an older one's table ends earlier (see [`entry`]).
//! `fi_info` and its attributes are never made here, only changed: the library makes them (`fi_dupinfo` of null), so
//! that it may append fields.

use std::ffi::{c_char, c_int, c_void};

pub(crate) const CAP_MSG: u64 = 1 << 1;
pub(crate) const CAP_RMA: u64 = 1 << 2;
pub(crate) const WRITE: u64 = 1 << 9;
pub(crate) const RECV: u64 = 1 << 10;
pub(crate) const TRANSMIT: u64 = 1 << 11;
pub(crate) const REMOTE_WRITE: u64 = 1 << 13;
pub(crate) const REMOTE_CQ_DATA: u64 = 1 << 17;
pub(crate) const CAP_HMEM: u64 = 1 << 47;

pub(crate) const MODE_CONTEXT: u64 = 1 << 59;
pub(crate) const MODE_CONTEXT2: u64 = 1 << 52;
pub(crate) const MODE_RX_CQ_DATA: u64 = 1 << 56;

pub(crate) const MR_LOCAL: c_int = 1 << 2;
pub(crate) const MR_VIRT_ADDR: c_int = 1 << 4;
pub(crate) const MR_ALLOCATED: c_int = 1 << 5;
pub(crate) const MR_PROV_KEY: c_int = 1 << 6;
pub(crate) const MR_HMEM: c_int = 1 << 10;
/// Since 1.20: the registration names a dma-buf descriptor.
pub(crate) const MR_DMABUF: u64 = 1 << 40;
pub(crate) const HMEM_CUDA: u32 = 1;

pub(crate) const EP_RDM: u32 = 3;
pub(crate) const PROGRESS_AUTO: u32 = 1;
pub(crate) const PROGRESS_MANUAL: u32 = 2;
pub(crate) const THREAD_DOMAIN: u32 = 3;
pub(crate) const THREAD_SAFE: u32 = 1;
pub(crate) const CQ_FORMAT_DATA: u32 = 3;
pub(crate) const WAIT_NONE: u32 = 0;
pub(crate) const WAIT_FD: u32 = 3;
pub(crate) const BUS_PCI: u32 = 1;
pub(crate) const CONTROL_GETWAIT: c_int = 5;
pub(crate) const CONTROL_ENABLE: c_int = 6;
pub(crate) const OPT_ENDPOINT: c_int = 0;
/// Since 1.18, a C `bool`.
pub(crate) const OPT_CUDA_API_PERMITTED: c_int = 10;

pub(crate) const SOCKADDR: u32 = 1;
pub(crate) const SOCKADDR_IN: u32 = 2;
pub(crate) const SOCKADDR_IN6: u32 = 3;
pub(crate) const ADDR_STR: u32 = 9;
/// No particular peer, and no address.
pub(crate) const ADDR_UNSPEC: u64 = u64::MAX;

pub(crate) const ENOMEM: i32 = 12;
pub(crate) const EAGAIN: i32 = 11;
pub(crate) const ENOSYS: i32 = 38;
pub(crate) const ENODATA: i32 = 61;
pub(crate) const ESHUTDOWN: i32 = 108;
pub(crate) const ETIMEDOUT: i32 = 110;
pub(crate) const ECANCELED: i32 = 125;
pub(crate) const ETOOSMALL: i32 = 257;
pub(crate) const EAVAIL: i32 = 259;

/// A version as the library counts it.
pub(crate) const fn version(major: u32, minor: u32) -> u32 {
    major << 16 | minor
}

/// An entry of a table of calls; `None` where the table is missing, ends before it, or has none. To be used in an unsafe
/// block: the table must be null or one of the library's.
macro_rules! entry {
    ($ops:expr, $table:ty, $field:ident) => {{
        let ops: *const $table = $ops;
        if ops.is_null() || (*ops).size <= ::std::mem::offset_of!($table, $field) {
            None
        } else {
            (*ops).$field
        }
    }};
}
pub(crate) use entry;

/// Declares a structure of the library's with public fields.
macro_rules! c_struct {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct $name {
            $(pub(crate) $field: $type,)*
        }
    };
}

type Call<A> = Option<A>;
/// Stands for an entry that is not called.
type Skipped = usize;

c_struct! {
    /// The head of every object.
    Fid { class: usize, context: *mut c_void, ops: *const FidOps, }
}
c_struct! {
    FidOps {
        size: usize,
        close: Call<unsafe extern "C" fn(*mut Fid) -> c_int>,
        bind: Call<unsafe extern "C" fn(*mut Fid, *mut Fid, u64) -> c_int>,
        control: Call<unsafe extern "C" fn(*mut Fid, c_int, *mut c_void) -> c_int>,
    }
}
c_struct! {
    Fabric { fid: Fid, ops: *const FabricOps, api_version: u32, }
}
c_struct! {
    FabricOps {
        size: usize,
        domain: Call<unsafe extern "C" fn(*mut Fabric, *mut Info, *mut *mut Domain, *mut c_void) -> c_int>,
        passive_ep: Skipped,
        eq_open: Skipped,
        wait_open: Skipped,
        trywait: Call<unsafe extern "C" fn(*mut Fabric, *mut *mut Fid, c_int) -> c_int>,
    }
}
c_struct! {
    Domain { fid: Fid, ops: *const DomainOps, mr: *const MrOps, }
}
c_struct! {
    DomainOps {
        size: usize,
        av_open: Call<unsafe extern "C" fn(*mut Domain, *mut AvAttr, *mut *mut Av, *mut c_void) -> c_int>,
        cq_open: Call<unsafe extern "C" fn(*mut Domain, *mut CqAttr, *mut *mut Cq, *mut c_void) -> c_int>,
        endpoint: Call<unsafe extern "C" fn(*mut Domain, *mut Info, *mut *mut Ep, *mut c_void) -> c_int>,
    }
}
c_struct! {
    MrOps { size: usize, reg: Call<Register>, regv: Skipped, regattr: Call<RegisterAttr>, }
}
/// `fi_mr_reg`: domain, memory, length, access, offset, key asked for, flags, region, context.
pub(crate) type Register = unsafe extern "C" fn(
    *mut Fid,
    *const c_void,
    usize,
    u64,
    u64,
    u64,
    u64,
    *mut *mut Mr,
    *mut c_void,
) -> c_int;
/// `fi_mr_regattr`: domain, attributes, flags, region.
pub(crate) type RegisterAttr = unsafe extern "C" fn(*mut Fid, *const MrAttr, u64, *mut *mut Mr) -> c_int;
c_struct! {
    Mr { fid: Fid, descriptor: *mut c_void, key: u64, }
}
c_struct! {
    /// `fi_mr_attr` with spare words, which newer versions read.
    MrAttr {
        memory: *const c_void,
        count: usize,
        access: u64,
        offset: u64,
        requested_key: u64,
        context: *mut c_void,
        auth_key_size: usize,
        auth_key: *mut u8,
        interface: u32,
        device: u64,
        spare: [u64; 16],
    }
}
c_struct! {
    IoVec { base: *mut c_void, bytes: usize, }
}
c_struct! {
    DmaBuf { descriptor: c_int, offset: u64, bytes: usize, base: *mut c_void, }
}
c_struct! {
    Av { fid: Fid, ops: *const AvOps, }
}
c_struct! {
    AvOps {
        size: usize,
        insert: Call<unsafe extern "C" fn(*mut Av, *const c_void, usize, *mut u64, u64, *mut c_void) -> c_int>,
    }
}
c_struct! {
    AvAttr {
        kind: u32,
        rx_ctx_bits: c_int,
        count: usize,
        ep_per_node: usize,
        name: *const c_char,
        map_address: *mut c_void,
        flags: u64,
    }
}
c_struct! {
    Cq { fid: Fid, ops: *const CqOps, }
}
c_struct! {
    CqOps {
        size: usize,
        read: Call<unsafe extern "C" fn(*mut Cq, *mut c_void, usize) -> isize>,
        readfrom: Skipped,
        readerr: Call<unsafe extern "C" fn(*mut Cq, *mut CqError, u64) -> isize>,
        sread: Skipped,
        sreadfrom: Skipped,
        signal: Skipped,
        strerror: Call<unsafe extern "C" fn(*mut Cq, c_int, *const c_void, *mut c_char, usize) -> *const c_char>,
    }
}
c_struct! {
    CqAttr {
        entries: usize,
        flags: u64,
        format: u32,
        wait: u32,
        signaling_vector: c_int,
        wait_condition: u32,
        wait_set: *mut c_void,
    }
}
c_struct! {
    CqData { context: *mut c_void, flags: u64, len: usize, buffer: *mut c_void, data: u64, }
}
c_struct! {
    /// `fi_cq_err_entry` with spare words: newer versions append fields and write them.
    CqError {
        context: *mut c_void,
        flags: u64,
        len: usize,
        buffer: *mut c_void,
        data: u64,
        tag: u64,
        over: usize,
        error: c_int,
        provider_error: c_int,
        error_data: *mut c_void,
        error_data_bytes: usize,
        spare: [u64; 16],
    }
}
c_struct! {
    Ep {
        fid: Fid,
        ops: *const EpOps,
        cm: *const CmOps,
        msg: *const MsgOps,
        rma: *const RmaOps,
    }
}
c_struct! {
    EpOps {
        size: usize,
        cancel: Skipped,
        getopt: Skipped,
        setopt: Call<unsafe extern "C" fn(*mut Fid, c_int, c_int, *const c_void, usize) -> c_int>,
    }
}
c_struct! {
    CmOps {
        size: usize,
        setname: Skipped,
        getname: Call<unsafe extern "C" fn(*mut Fid, *mut c_void, *mut usize) -> c_int>,
    }
}
c_struct! {
    MsgOps { size: usize, recv: Call<Receive>, }
}
/// `fi_recv`: endpoint, memory, length, descriptor, from whom, context.
pub(crate) type Receive =
    unsafe extern "C" fn(*mut Ep, *mut c_void, usize, *mut c_void, u64, *mut c_void) -> isize;
c_struct! {
    RmaOps {
        size: usize,
        read: Skipped,
        readv: Skipped,
        readmsg: Skipped,
        write: Skipped,
        writev: Skipped,
        writemsg: Skipped,
        inject: Skipped,
        writedata: Call<WriteData>,
    }
}
/// `fi_writedata`: endpoint, memory, length, descriptor, data, to whom, remote address, key, context.
pub(crate) type WriteData = unsafe extern "C" fn(
    *mut Ep,
    *const c_void,
    usize,
    *mut c_void,
    u64,
    u64,
    u64,
    u64,
    *mut c_void,
) -> isize;

c_struct! {
    Info {
        next: *mut Info,
        caps: u64,
        mode: u64,
        address_format: u32,
        source_bytes: usize,
        destination_bytes: usize,
        source: *mut c_void,
        destination: *mut c_void,
        handle: *mut Fid,
        tx: *mut TxAttr,
        rx: *mut RxAttr,
        ep: *mut EpAttr,
        domain: *mut DomainAttr,
        fabric: *mut FabricAttr,
        nic: *mut Nic,
    }
}
c_struct! {
    TxAttr {
        caps: u64,
        mode: u64,
        op_flags: u64,
        msg_order: u64,
        comp_order: u64,
        inject: usize,
        depth: usize,
        iov_limit: usize,
        rma_iov_limit: usize,
    }
}
c_struct! {
    RxAttr {
        caps: u64,
        mode: u64,
        op_flags: u64,
        msg_order: u64,
        comp_order: u64,
        buffered: usize,
        depth: usize,
    }
}
c_struct! {
    EpAttr { kind: u32, protocol: u32, protocol_version: u32, max_message: usize, }
}
c_struct! {
    DomainAttr {
        domain: *mut Domain,
        name: *mut c_char,
        threading: u32,
        control_progress: u32,
        data_progress: u32,
        resource_mgmt: u32,
        av_kind: u32,
        mr_mode: c_int,
        mr_key_bytes: usize,
        cq_data_bytes: usize,
    }
}
c_struct! {
    FabricAttr {
        fabric: *mut Fabric,
        name: *mut c_char,
        provider: *mut c_char,
        provider_version: u32,
        api_version: u32,
    }
}
c_struct! {
    Nic { fid: Fid, device: *mut c_void, bus: *mut BusAttr, link: *mut LinkAttr, }
}
c_struct! {
    BusAttr { kind: u32, domain: u16, bus: u8, device: u8, function: u8, }
}
c_struct! {
    LinkAttr { address: *mut c_char, mtu: usize, speed: usize, state: u32, network: *mut c_char, }
}

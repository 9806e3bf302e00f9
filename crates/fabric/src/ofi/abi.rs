//! Places of fields against the numbers that gcc's `offsetof` gives over the headers of 1.17 on a 64-bit machine. They are
//! asserted when this is compiled; where headers are installed, a test asks gcc again.

use std::mem::{offset_of, size_of};

use crate::ofi::ffi;

macro_rules! places {
    ($($type:ident.$field:ident = $place:literal, $c_type:literal, $c_field:literal;)*) => {
        $(const _: () = assert!(offset_of!(ffi::$type, $field) == $place);)*
        #[cfg(test)]
        const PLACES: &[(&str, &str, usize)] = &[$(($c_type, $c_field, $place),)*];
    };
}

places! {
    Fid.ops = 16, "fid", "ops";
    FidOps.control = 24, "fi_ops", "control";
    Fabric.ops = 24, "fid_fabric", "ops";
    FabricOps.domain = 8, "fi_ops_fabric", "domain";
    FabricOps.trywait = 40, "fi_ops_fabric", "trywait";
    Domain.ops = 24, "fid_domain", "ops";
    Domain.mr = 32, "fid_domain", "mr";
    DomainOps.av_open = 8, "fi_ops_domain", "av_open";
    DomainOps.cq_open = 16, "fi_ops_domain", "cq_open";
    DomainOps.endpoint = 24, "fi_ops_domain", "endpoint";
    MrOps.reg = 8, "fi_ops_mr", "reg";
    MrOps.regattr = 24, "fi_ops_mr", "regattr";
    Mr.descriptor = 24, "fid_mr", "mem_desc";
    Mr.key = 32, "fid_mr", "key";
    MrAttr.requested_key = 32, "fi_mr_attr", "requested_key";
    MrAttr.interface = 64, "fi_mr_attr", "iface";
    MrAttr.device = 72, "fi_mr_attr", "device";
    Av.ops = 24, "fid_av", "ops";
    AvOps.insert = 8, "fi_ops_av", "insert";
    AvAttr.count = 8, "fi_av_attr", "count";
    AvAttr.flags = 40, "fi_av_attr", "flags";
    Cq.ops = 24, "fid_cq", "ops";
    CqOps.read = 8, "fi_ops_cq", "read";
    CqOps.readerr = 24, "fi_ops_cq", "readerr";
    CqOps.strerror = 56, "fi_ops_cq", "strerror";
    CqAttr.format = 16, "fi_cq_attr", "format";
    CqAttr.wait = 20, "fi_cq_attr", "wait_obj";
    CqAttr.wait_set = 32, "fi_cq_attr", "wait_set";
    CqData.flags = 8, "fi_cq_data_entry", "flags";
    CqData.data = 32, "fi_cq_data_entry", "data";
    CqError.error = 56, "fi_cq_err_entry", "err";
    CqError.provider_error = 60, "fi_cq_err_entry", "prov_errno";
    CqError.error_data = 64, "fi_cq_err_entry", "err_data";
    Ep.ops = 24, "fid_ep", "ops";
    Ep.cm = 32, "fid_ep", "cm";
    Ep.msg = 40, "fid_ep", "msg";
    Ep.rma = 48, "fid_ep", "rma";
    EpOps.setopt = 24, "fi_ops_ep", "setopt";
    CmOps.getname = 16, "fi_ops_cm", "getname";
    MsgOps.recv = 8, "fi_ops_msg", "recv";
    RmaOps.writedata = 64, "fi_ops_rma", "writedata";
    Info.caps = 8, "fi_info", "caps";
    Info.mode = 16, "fi_info", "mode";
    Info.address_format = 24, "fi_info", "addr_format";
    Info.source_bytes = 32, "fi_info", "src_addrlen";
    Info.source = 48, "fi_info", "src_addr";
    Info.tx = 72, "fi_info", "tx_attr";
    Info.rx = 80, "fi_info", "rx_attr";
    Info.ep = 88, "fi_info", "ep_attr";
    Info.domain = 96, "fi_info", "domain_attr";
    Info.fabric = 104, "fi_info", "fabric_attr";
    Info.nic = 112, "fi_info", "nic";
    TxAttr.inject = 40, "fi_tx_attr", "inject_size";
    TxAttr.depth = 48, "fi_tx_attr", "size";
    RxAttr.depth = 48, "fi_rx_attr", "size";
    EpAttr.protocol = 4, "fi_ep_attr", "protocol";
    EpAttr.max_message = 16, "fi_ep_attr", "max_msg_size";
    DomainAttr.name = 8, "fi_domain_attr", "name";
    DomainAttr.threading = 16, "fi_domain_attr", "threading";
    DomainAttr.data_progress = 24, "fi_domain_attr", "data_progress";
    DomainAttr.mr_mode = 36, "fi_domain_attr", "mr_mode";
    DomainAttr.mr_key_bytes = 40, "fi_domain_attr", "mr_key_size";
    DomainAttr.cq_data_bytes = 48, "fi_domain_attr", "cq_data_size";
    FabricAttr.name = 8, "fi_fabric_attr", "name";
    FabricAttr.provider = 16, "fi_fabric_attr", "prov_name";
    Nic.bus = 32, "fid_nic", "bus_attr";
    Nic.link = 40, "fid_nic", "link_attr";
    BusAttr.domain = 4, "fi_bus_attr", "attr.pci.domain_id";
    BusAttr.bus = 6, "fi_bus_attr", "attr.pci.bus_id";
    BusAttr.function = 8, "fi_bus_attr", "attr.pci.function_id";
    LinkAttr.speed = 16, "fi_link_attr", "speed";
}

// What the library writes into memory of ours, or reads from it, is exactly as long. The two with spare words begin with
// all that 1.17 has.
const _: () = assert!(
    size_of::<ffi::CqData>() == 40 && size_of::<ffi::CqAttr>() == 40 && size_of::<ffi::AvAttr>() == 48
);
const _: () = assert!(offset_of!(ffi::MrAttr, spare) == 80 && offset_of!(ffi::CqError, spare) == 80);
// Of 1.20 and later, from its manual page: a descriptor, an offset, a length and an address.
const _: () = assert!(size_of::<ffi::DmaBuf>() == 32 && offset_of!(ffi::DmaBuf, base) == 24);

#[cfg(test)]
mod tests {
    use std::fmt::Write;
    use std::path::Path;
    use std::process::Command;

    use super::*;

    fn values() -> Vec<(&'static str, i128)> {
        vec![
            ("FI_MSG", ffi::CAP_MSG.into()),
            ("FI_RMA", ffi::CAP_RMA.into()),
            ("FI_WRITE", ffi::WRITE.into()),
            ("FI_RECV", ffi::RECV.into()),
            ("FI_TRANSMIT", ffi::TRANSMIT.into()),
            ("FI_REMOTE_WRITE", ffi::REMOTE_WRITE.into()),
            ("FI_REMOTE_CQ_DATA", ffi::REMOTE_CQ_DATA.into()),
            ("FI_HMEM", ffi::CAP_HMEM.into()),
            ("FI_CONTEXT", ffi::MODE_CONTEXT.into()),
            ("FI_CONTEXT2", ffi::MODE_CONTEXT2.into()),
            ("FI_RX_CQ_DATA", ffi::MODE_RX_CQ_DATA.into()),
            ("FI_MR_LOCAL", ffi::MR_LOCAL.into()),
            ("FI_MR_VIRT_ADDR", ffi::MR_VIRT_ADDR.into()),
            ("FI_MR_ALLOCATED", ffi::MR_ALLOCATED.into()),
            ("FI_MR_PROV_KEY", ffi::MR_PROV_KEY.into()),
            ("FI_MR_HMEM", ffi::MR_HMEM.into()),
            ("FI_HMEM_CUDA", ffi::HMEM_CUDA.into()),
            ("FI_EP_RDM", ffi::EP_RDM.into()),
            ("FI_PROGRESS_AUTO", ffi::PROGRESS_AUTO.into()),
            ("FI_PROGRESS_MANUAL", ffi::PROGRESS_MANUAL.into()),
            ("FI_THREAD_DOMAIN", ffi::THREAD_DOMAIN.into()),
            ("FI_THREAD_SAFE", ffi::THREAD_SAFE.into()),
            ("FI_CQ_FORMAT_DATA", ffi::CQ_FORMAT_DATA.into()),
            ("FI_WAIT_NONE", ffi::WAIT_NONE.into()),
            ("FI_WAIT_FD", ffi::WAIT_FD.into()),
            ("FI_BUS_PCI", ffi::BUS_PCI.into()),
            ("FI_GETWAIT", ffi::CONTROL_GETWAIT.into()),
            ("FI_ENABLE", ffi::CONTROL_ENABLE.into()),
            ("FI_OPT_ENDPOINT", ffi::OPT_ENDPOINT.into()),
            ("FI_SOCKADDR", ffi::SOCKADDR.into()),
            ("FI_SOCKADDR_IN", ffi::SOCKADDR_IN.into()),
            ("FI_SOCKADDR_IN6", ffi::SOCKADDR_IN6.into()),
            ("FI_ADDR_STR", ffi::ADDR_STR.into()),
            ("FI_ADDR_UNSPEC", ffi::ADDR_UNSPEC.into()),
            ("FI_ENOMEM", ffi::ENOMEM.into()),
            ("FI_EAGAIN", ffi::EAGAIN.into()),
            ("FI_ENOSYS", ffi::ENOSYS.into()),
            ("FI_ENODATA", ffi::ENODATA.into()),
            ("FI_ESHUTDOWN", ffi::ESHUTDOWN.into()),
            ("FI_ETIMEDOUT", ffi::ETIMEDOUT.into()),
            ("FI_ECANCELED", ffi::ECANCELED.into()),
            ("FI_ETOOSMALL", ffi::ETOOSMALL.into()),
            ("FI_EAVAIL", ffi::EAVAIL.into()),
        ]
    }

    const SIZES: &[(&str, usize)] = &[
        ("fi_cq_data_entry", size_of::<ffi::CqData>()),
        ("fi_cq_attr", size_of::<ffi::CqAttr>()),
        ("fi_av_attr", size_of::<ffi::AvAttr>()),
    ];

    #[test]
    fn gcc_finds_every_field_and_value_where_they_are_declared() {
        if !Path::new("/usr/include/rdma/fabric.h").exists() {
            println!("NOT RUN: no headers of libfabric (Debian and Ubuntu: libfabric-dev)");
            return;
        }
        let mut source = String::from("#include <stddef.h>\n#include <stdio.h>\n");
        for header in ["fabric", "fi_domain", "fi_endpoint", "fi_cm", "fi_rma", "fi_eq", "fi_errno"] {
            writeln!(source, "#include <rdma/{header}.h>").unwrap();
        }
        source.push_str("int main(void) {\n");
        let mut wanted = Vec::new();
        for (name, field, place) in PLACES {
            writeln!(source, "printf(\"%zu\\n\", offsetof(struct {name}, {field}));").unwrap();
            wanted.push((format!("{name}.{field}"), place.to_string()));
        }
        for (name, size) in SIZES {
            writeln!(source, "printf(\"%zu\\n\", sizeof(struct {name}));").unwrap();
            wanted.push(((*name).to_owned(), size.to_string()));
        }
        for (name, value) in values() {
            writeln!(source, "printf(\"%llu\\n\", (unsigned long long)({name}));").unwrap();
            wanted.push((name.to_owned(), value.to_string()));
        }
        source.push_str("return 0; }\n");
        let folder = tempfile::tempdir().unwrap();
        let (file, program) = (folder.path().join("places.c"), folder.path().join("places"));
        std::fs::write(&file, source).unwrap();
        let built = Command::new("gcc").arg("-w").arg(&file).arg("-o").arg(&program).output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let said = String::from_utf8(Command::new(&program).output().unwrap().stdout).unwrap();
        let said: Vec<&str> = said.lines().collect();
        assert_eq!(said.len(), wanted.len());
        for ((name, ours), theirs) in wanted.iter().zip(said) {
            assert_eq!(ours, theirs, "{name}");
        }
    }
}

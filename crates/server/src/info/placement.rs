//! Fields of the section `Slimio` about where the device places writes.

use slimio_storage::{Lifetime, PlacementMonitor};

use super::Text;

/// The placement of each lifetime (a kind of data that is deleted together), and the device's own
/// counters.
pub(super) fn fields(text: &mut Text, monitor: &dyn PlacementMonitor) {
    let report = monitor.report();
    text.field("placement_count", report.placement_count);
    for lifetime in Lifetime::ALL {
        let (id, bytes) = report.lifetimes[lifetime.index()];
        let name = lifetime.name();
        text.line(format_args!("placement_{name}:id={},bytes={bytes}", id.0));
    }
    if let Some(counted) = report.counted {
        text.field("device_host_bytes", counted.host_bytes);
        text.field("device_media_bytes", counted.media_bytes);
        text.field("device_erased_bytes", counted.erased_bytes);
        text.field("device_waf", format_args!("{:.3}", counted.waf()));
    } else {
        text.field("device_waf_why_not", report.why_not_counted);
    }
}

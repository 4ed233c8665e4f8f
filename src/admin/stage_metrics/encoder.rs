//! Encodes families of metrics, each with its name, help and series.

use std::fmt;

use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeLabelSet, NoLabelSet,
};
use prometheus_client::metrics::MetricType;

use crate::metrics::HistogramSnapshot;

pub(crate) struct FamilyEncoder<'w>(pub(crate) DescriptorEncoder<'w>);

impl FamilyEncoder<'_> {
    pub(crate) fn counter(
        &mut self,
        name: &str,
        help: &str,
        count: impl EncodeCounterValue + Copy,
    ) -> fmt::Result {
        let encoder = &mut self.0;
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        metric.encode_counter::<NoLabelSet, _, u64>(&count, None)
    }

    pub(crate) fn gauge(
        &mut self,
        name: &str,
        help: &str,
        value: impl EncodeGaugeValue + Copy,
    ) -> fmt::Result {
        let encoder = &mut self.0;
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        metric.encode_gauge(&value)
    }

    /// Encodes a counter with labels.
    pub(crate) fn counters<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        series: impl IntoIterator<Item = (L, u64)>,
    ) -> fmt::Result {
        let encoder = &mut self.0;
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, count) in series {
            let mut metric = family.encode_family(&labels)?;
            metric.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
        }
        Ok(())
    }

    /// Encodes a gauge with labels.
    pub(crate) fn gauges<L: EncodeLabelSet, V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        series: impl IntoIterator<Item = (L, V)>,
    ) -> fmt::Result {
        let encoder = &mut self.0;
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in series {
            family.encode_family(&labels)?.encode_gauge(&value)?;
        }
        Ok(())
    }

    /// Encodes a histogram with labels, in seconds.
    pub(crate) fn histograms<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        series: impl IntoIterator<Item = (L, HistogramSnapshot)>,
    ) -> fmt::Result {
        let encoder = &mut self.0;
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (labels, HistogramSnapshot { sum, buckets }) in series {
            let count = buckets.iter().map(|(_, count)| count).sum();
            let mut metric = family.encode_family(&labels)?;
            metric.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }
        Ok(())
    }
}

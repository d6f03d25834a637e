//! Planned timelines compared with the textbook's bubbles, and measured timelines.

use thalweg_dist::pipeline::{
    Computation, Pipeline, PipelineOptions, PipelineStage, Schedule, Timeline, TimelineSpan,
};
use thalweg_dist::{run_ranks, simulated_devices};
use thalweg_runtime::Result;

use super::training::Layers;
use crate::support::{batch, loss};

/// Returns the bubble of a schedule in which a forward pass and each half of a backward pass take equally long.
fn bubble(schedule: Result<Schedule>) -> f64 {
    let cost = |computation| if computation == Computation::FullBackward { 2.0 } else { 1.0 };
    Timeline::planned(&schedule.unwrap(), |action| cost(action.computation)).unwrap().bubble_share()
}

#[track_caller]
fn near(found: f64, wanted: f64) {
    assert!((found - wanted).abs() < 1e-9, "{found}, not {wanted}");
}

#[test]
fn planned_bubbles_are_the_textbooks() {
    for (ranks, microbatches) in [(2, 4), (4, 8), (8, 32)] {
        let idle = (ranks - 1) as f64;
        let share = |chunks: usize| idle / (chunks as f64 * microbatches as f64 + idle);
        near(bubble(Schedule::gpipe(ranks, microbatches)), share(1));
        near(bubble(Schedule::one_f_one_b(ranks, microbatches)), share(1));
        near(bubble(Schedule::interleaved(ranks, 2, microbatches)), share(2));
        near(bubble(Schedule::looped_bfs(ranks, 2, microbatches)), share(2));
        let zero = bubble(Schedule::zero_bubble(ranks, 1, microbatches));
        assert!(zero < 0.5 * share(1), "{zero} of {}", share(1));
    }
    // In ZBV each rank works without a break from its first action to its last.
    let zbv = Timeline::planned(&Schedule::zbv(4, 12).unwrap(), |_| 1.0).unwrap();
    for (rank, row) in zbv.rows().iter().enumerate() {
        assert_eq!(row.len(), 6 * 12);
        near(row.last().unwrap().end_ms - row[0].begin_ms, row.len() as f64);
        near(row[0].begin_ms, rank as f64);
    }
}

#[test]
fn pictures_show_every_computation() {
    let schedule = Schedule::one_f_one_b(2, 3).unwrap();
    let timeline = Timeline::planned(&schedule, |_| 1.0).unwrap();
    let svg = timeline.to_svg("1F1B <2 ranks>");
    assert!(svg.contains("1F1B &lt;2 ranks&gt;: 8.00 ms, bubble 25.0 %"), "{svg}");
    assert_eq!(svg.matches("<title>").count(), 12);
    assert_eq!(svg.matches("<rect").count() - svg.matches("</rect>").count(), 1 + 2 + 2, "{svg}");
    assert!(
        Timeline::planned(&Schedule::from_csv("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1").unwrap(), |_| 1.0).is_err()
    );
}

#[test]
fn a_measured_step_keeps_the_order_and_has_a_bound_of_the_same_work() {
    let schedule = Schedule::zero_bubble(2, 1, 4).unwrap();
    let timelines = run_ranks(&simulated_devices(2).unwrap(), |group| {
        let rank = group.rank() as usize;
        let layers = Layers::new(rank, 2, group.device())?;
        let stage = PipelineStage::new(&layers, rank, 2)?;
        let mut pipeline = Pipeline::new(&schedule, vec![stage], &group, PipelineOptions::with_loss(loss))?;
        let (input, target) = batch(0, 1, 0, group.device())?;
        let (output, timeline) = pipeline.step_timed(Some(&input), Some(&target))?;
        assert_eq!(output.losses().len(), if rank == 1 { 4 } else { 0 });
        Ok(timeline)
    })
    .unwrap();
    assert_eq!(timelines[0], timelines[1], "all ranks get the whole");
    let timeline = &timelines[0];
    for (row, wanted) in timeline.rows().iter().zip(schedule.rows()) {
        assert_eq!(&row.iter().map(|span| span.action).collect::<Vec<_>>(), wanted);
        assert!(row.windows(2).all(|pair| pair[0].end_ms <= pair[1].begin_ms + 1e-3));
        assert!(row.iter().all(|span| span.begin_ms <= span.end_ms));
    }
    let bound = timeline.bound(&schedule).unwrap();
    // Each rank's clock has its own zero, so the bound is compared rank by rank.
    for (row, bound) in timeline.rows().iter().zip(bound.rows()) {
        let busy = |row: &[TimelineSpan]| row.iter().map(|span| span.end_ms - span.begin_ms).sum::<f64>();
        assert!((busy(row) - busy(bound)).abs() < 1e-6, "the same work");
    }
    assert!(bound.total_ms() > 0.0 && bound.bubble_share() < 1.0);
    assert!((0.0..=1.0).contains(&timeline.bubble_share()));
    assert!(
        timeline.bound(&Schedule::gpipe(2, 4).unwrap()).is_err(),
        "whole backward passes were not measured"
    );
}

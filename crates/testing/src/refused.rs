//! Makes system calls fail, with a seccomp filter of the kernel. A filter applies to one thread and
//! can't be removed. So a test sets its filter [on a thread of its own](on_a_thread).

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

/// System calls with this number. If an argument's index and value are given, only calls with this
/// value in this argument.
pub type Call = (i64, Option<(u8, u64)>);

/// Makes `calls` fail with the error number `errno` on the calling thread. If `errno` is zero, the
/// calls do nothing and report success.
///
/// # Panics
/// If the kernel does not accept the filter.
pub fn refuse(calls: &[Call], errno: i32) {
    let mut rules = BTreeMap::<i64, Vec<SeccompRule>>::new();
    for (number, argument) in calls {
        let rule = argument.map(|(index, value)| {
            let (size, equal) = (SeccompCmpArgLen::Qword, SeccompCmpOp::Eq);
            let condition = SeccompCondition::new(index, size, equal, value);
            SeccompRule::new(vec![
                condition.expect("system calls have an argument with this index"),
            ])
            .expect("the rule has a condition")
        });
        rules.entry(*number).or_default().extend(rule);
    }
    let filter = SeccompFilter::new(
        rules,
        SeccompAction::Allow,
        SeccompAction::Errno(errno.unsigned_abs()),
        std::env::consts::ARCH.try_into().expect("seccompiler knows this architecture"),
    );
    let program: BpfProgram =
        filter.and_then(TryInto::try_into).expect("the filter can be compiled");
    seccompiler::apply_filter(&program).expect("the kernel accepts the filter");
}

/// Calls `run` on a thread of its own, and returns the result.
///
/// # Panics
/// If `run` panics.
pub fn on_a_thread<R: Send>(run: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| scope.spawn(run).join().expect("the thread ends without a panic"))
}

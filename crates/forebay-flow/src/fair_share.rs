//! Max-min fair shares: nobody gets more than wanted, and nobody could get more without taking it from one
//! who has no more.
//!
//! Progressive filling (Bertsekas and Gallager, "Data Networks", section 6.5.2): from the smallest demand up,
//! each gets the lesser of its demand and an equal share of what is left.

/// Divides `capacity` among `demands`; whole units, the odd ones to the larger demands.
#[must_use]
pub fn max_min(capacity: u64, demands: &[u64]) -> Vec<u64> {
    let mut order: Vec<usize> = (0..demands.len()).collect();
    order.sort_by_key(|&index| demands[index]);
    let mut shares = vec![0; demands.len()];
    let mut left = capacity;
    for (filled, &index) in order.iter().enumerate() {
        let equal = left / (demands.len() - filled) as u64;
        shares[index] = demands[index].min(equal);
        left -= shares[index];
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_the_modest_leave_goes_to_the_others() {
        assert_eq!(max_min(10, &[2, 8, 10]), [2, 4, 4]);
        assert_eq!(max_min(100, &[2, 8, 10]), [2, 8, 10]);
        assert_eq!(max_min(7, &[9, 9, 9]), [2, 2, 3]);
        assert_eq!(max_min(7, &[]), [0; 0]);
    }

    proptest! {
        #[test]
        fn shares_are_max_min_fair(capacity in 0..1_000u64, demands in prop::collection::vec(0..200u64, 1..20)) {
            let shares = max_min(capacity, &demands);
            prop_assert_eq!(shares.iter().sum::<u64>(), capacity.min(demands.iter().sum()));
            let most = shares.iter().copied().max().unwrap_or(0);
            for (share, demand) in shares.iter().zip(&demands) {
                prop_assert!(share <= demand);
                // Who gets less than it wants has as much as anybody, but for one unit that does not divide.
                prop_assert!(share == demand || share + 1 >= most);
            }
        }
    }
}

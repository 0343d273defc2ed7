"""The numbers that the paper prints: Tables 1 and 2, and the coefficients of Q5. Its figures have none."""

PAPER_Q1 = {
    (10_000, 2): {"online_s": 0.33 * 60, "offline_s": 1.61 * 60, "online_mb": 1_084, "offline_mb": 3_660},
    (10_000, 5): {"online_s": 0.94 * 60, "offline_s": 4.70 * 60, "online_mb": 3_156, "offline_mb": 12_900},
    (100_000, 2): {"online_s": 3.12 * 60, "offline_s": 15.19 * 60, "online_mb": 14_147, "offline_mb": 32_598},
    (100_000, 5): {"online_s": 9.06 * 60, "offline_s": 48.39 * 60, "online_mb": 33_572, "offline_mb": 131_243},
}
"""Rows and clusters -> the paper's own protocol, in seconds (the table has minutes) and MB."""
M_KMEANS = {
    (10_000, 2): {"s": 1.92 * 60, "mb": 5_118},
    (10_000, 5): {"s": 5.81 * 60, "mb": 18_632},
    (100_000, 2): {"s": 18.02 * 60, "mb": 47_342},
    (100_000, 5): {"s": 58.09 * 60, "mb": 192_192},
}
"""M-Kmeans in the same tables; it has no phases."""
PAPER_Q5 = {"together on shares": 0.86, "M-Kmeans": 0.83, "alone": 0.62}

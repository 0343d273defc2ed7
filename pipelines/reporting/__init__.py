"""Tables and pages for users: plan, progress, status, results and the run report."""

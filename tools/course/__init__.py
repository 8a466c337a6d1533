"""Course tooling: learner's trees, tests per task, progress and mutants.

tasks       days and tasks, with their chapters
markers     blocks of the solution that belong to a task
starter     sources with these blocks removed
tree        location and contents of the learner's tree
runner      runs tests; result_cache and results: per day, rerun after changes
wrong_solutions  the solution with a mistake of tests/course/wrong; mutants is the quiz
history     scores by date
pytest_summary   output of `pdm run test`
"""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("ojs_jobs", "0028_tenants"),
    ]

    operations = [
        migrations.RemoveConstraint(
            model_name="workflow",
            name="ojs_workflow_terminal_is_finished",
        ),
        migrations.AddField(
            model_name="workflow",
            name="compensations",
            field=models.JSONField(blank=True, null=True),
        ),
        migrations.AlterField(
            model_name="workflow",
            name="state",
            field=models.CharField(
                choices=[
                    ("pending", "Pending"),
                    ("running", "Running"),
                    ("completed", "Completed"),
                    ("failed", "Failed"),
                    ("cancelled", "Cancelled"),
                    ("compensating", "Compensating"),
                    ("compensated", "Compensated"),
                ],
                default="running",
                max_length=12,
            ),
        ),
        migrations.AlterField(
            model_name="workflow",
            name="type",
            field=models.CharField(
                choices=[
                    ("chain", "Chain"),
                    ("group", "Group"),
                    ("batch", "Batch"),
                    ("dag", "Dag"),
                    ("saga", "Saga"),
                ],
                max_length=5,
            ),
        ),
        migrations.AddConstraint(
            model_name="workflow",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(
                        ("finished_at__isnull", False),
                        ("state__in", ("completed", "failed", "cancelled", "compensated")),
                    ),
                    models.Q(
                        ("finished_at__isnull", True),
                        ("state__in", ("pending", "running", "compensating")),
                    ),
                    _connector="OR",
                ),
                name="ojs_workflow_terminal_is_finished",
            ),
        ),
    ]

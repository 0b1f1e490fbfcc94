import uuid

import django.utils.timezone
from django.db import migrations, models

MINORS = 10**9


def number_patches_and_name_uris(apps, schema_editor):
    """Versions such as 2.0.7 were kept as 2.0, and there were no URIs."""
    database = schema_editor.connection.alias
    rows = apps.get_model("ojs_jobs", "JobSchema").objects.using(database)
    for row in rows.order_by("pk"):
        parts = row.version.split(".")
        row.patch = int(parts[2]) if len(parts) > 2 else 0
        row.uri = f"urn:ojs:schema:{row.type}:v{row.version}"
        row.save(update_fields=["patch", "uri"])
    if rows.exists():
        registry = apps.get_model("ojs_jobs", "SchemaRegistry").objects.using(database)
        registry.create(pk=1, token=uuid.uuid4().hex)


class Migration(migrations.Migration):
    dependencies = [
        ("ojs_jobs", "0023_early_indexes"),
    ]

    operations = [
        migrations.AlterModelOptions(
            name="jobschema",
            options={
                "ordering": ("type", "-version_number", "-patch"),
                "permissions": [
                    (
                        "manage_schema",
                        "Can register and delete job schemas, and set how they are used",
                    )
                ],
                "verbose_name": "job schema",
                "verbose_name_plural": "job schemas",
            },
        ),
        migrations.AddField(
            model_name="jobschema",
            name="patch",
            field=models.PositiveIntegerField(db_default=0, default=0),
        ),
        migrations.AddField(
            model_name="jobschema",
            name="uri",
            field=models.CharField(blank=True, db_default="", default="", max_length=600),
        ),
        migrations.CreateModel(
            name="SchemaMode",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("type", models.CharField(blank=True, default="", max_length=255)),
                ("queue", models.CharField(blank=True, default="", max_length=128)),
                (
                    "mode",
                    models.CharField(
                        choices=[
                            ("strict", "strict: refuse jobs that do not match"),
                            ("warn", "warn: accept them with a warning"),
                            ("off", "off: schemas are documentation"),
                        ],
                        max_length=6,
                    ),
                ),
                ("updated_at", models.DateTimeField(default=django.utils.timezone.now)),
            ],
            options={
                "verbose_name": "validation mode",
                "verbose_name_plural": "validation modes",
                "default_permissions": (),
                "ordering": ("type", "queue"),
                "constraints": [
                    models.UniqueConstraint(fields=("type", "queue"), name="ojs_schemamode_target")
                ],
            },
        ),
        migrations.CreateModel(
            name="SchemaRegistry",
            fields=[
                ("id", models.PositiveSmallIntegerField(default=1, editable=False, primary_key=True, serialize=False)),
                ("token", models.CharField(max_length=32)),
            ],
            options={
                "verbose_name": "schema registry",
                "verbose_name_plural": "schema registry",
                "default_permissions": (),
            },
        ),
        migrations.RunPython(number_patches_and_name_uris, migrations.RunPython.noop, elidable=True),
        migrations.RemoveConstraint(model_name="jobschema", name="ojs_jobschema_version"),
        migrations.AddConstraint(
            model_name="jobschema",
            constraint=models.UniqueConstraint(
                fields=("type", "version_number", "patch"), name="ojs_jobschema_version"
            ),
        ),
        migrations.AddConstraint(
            model_name="jobschema",
            constraint=models.UniqueConstraint(
                condition=models.Q(("uri", ""), _negated=True),
                fields=("uri",),
                name="ojs_jobschema_uri",
            ),
        ),
    ]

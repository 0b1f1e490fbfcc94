from shop.jobs.models import Job
from workers.runtime import handler


@handler("shop.hire")
def hire(context, vacancy, name):
    """Its work is in the site's database, the job in another one."""
    return Job.objects.filter(pk=vacancy, filled_by="").update(filled_by=name)

"""The clients' side of the app."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from faces.task import build, build_optimiser, train

app = ClientApp()


@app.train()
def fit(message: Message, context: Context) -> Message:
    """Train the server's model on this client's records."""
    net = build()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    client = context.node_config["partition-id"]
    config = context.run_config
    optimiser = build_optimiser(net, config["optimiser"], config["learning-rate"])
    loss = train(net, client, optimiser, config["local-epochs"])
    content = RecordDict(
        {
            "arrays": ArrayRecord(net.state_dict()),
            "metrics": MetricRecord({"train_loss": loss, "num-examples": 1}),
        }
    )
    return Message(content=content, reply_to=message)
